"""The record on disk: one JSON object of fixed size in the lock file itself, format version 1.

Promise: while the lock is held the file tells who holds it and under which token; afterwards, who
held it last. `jq . build.lock` works. A torn write is seen: the token stands at both ends. Rule:
the head ties content to file by the inode number. An unchanged head proves, with no further call,
that the descriptor still leads to the file we opened and that its content is ours to overwrite.
Schema: docs/reference/record.schema.json.
"""

from __future__ import annotations

from ..core.errors import CorruptRecord
from ..core.fence import LARGEST
from ..core.grant import Holder
from ..core.owner import Owner
from ..core.value import as_dict, value
from .loading import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from _json import encode_basestring_ascii as quoted
except ImportError:
    from json.encoder import encode_basestring_ascii as quoted

VERSION = 1
SIZE = 1024  # bytes, always: an older, longer record must not show through
MAGIC = b'{"lifehold":'
LATEST = 253_402_300_799_000_000  # the end of the year 9999: no calendar of ours goes further
MOST = 10**20  # after any number of ours: it has WIDTH digits
WIDTH = 20  # digits of a token or a time, padded with spaces
STRINGS = ("host", "machine_id", "boot_id", "user", "container", "label", "command")
NUMBERS = ("pid_ns", "time_ns", "pid", "start_ticks", "pidfd_ino", "thread", "uid")

NO_LEASE = ',"ttl":null,"renewals":0'

FRESH, OURS, COPY, NEWER, FOREIGN = "fresh", "ours", "copy", "newer", "foreign"


def head_of(ino: int) -> bytes:
    """The bytes before the token, in the file with this inode number."""
    return b'%s%d,"ino":%d,"token":' % (MAGIC, VERSION, ino)


def parts(
    ino: int, mark: str, owner: Owner, lease: str = NO_LEASE
) -> tuple[bytes, bytes, bytes, bytes]:
    """The constant stretches of a record; `numbered` puts the numbers between them.

    `mark` is random and the holder's; with the token it makes the nonce of one grant. `lease`: the
    members about its end, as local/tenure.py makes them.
    """
    known = as_dict(owner)
    head, middle, end = head_of(ino), ',"acquired_at_us":', f'{lease},"end":'
    start = f',"nonce":"{mark}"' + "".join(
        f',"{key}":{"null" if known[key] is None else known[key]}' for key in NUMBERS
    )
    room = SIZE - len(head) - 3 * WIDTH - len(middle) - len(start) - len(end) - len("}\n")
    for left, key in zip(range(len(STRINGS) - 1, -1, -1), STRINGS, strict=True):
        # Each may take what is there, less a little for each that comes after it.
        item = f',"{key}":{_clipped(known[key], room - len(key) - 4 - left * 24)}'
        start += item
        room -= len(item)
    tail = "}" + " " * room + "\n"
    return head, middle.encode(), (start + end).encode(), tail.encode()


def numbered(constant: tuple[bytes, bytes, bytes, bytes], token: int, stamp: int) -> bytes:
    """A whole record. The token stands at both ends: a torn read is seen."""
    head, middle, rest, tail = constant
    shown = b"%20d" % token
    at = shown if stamp == token else b"%20d" % stamp
    return b"".join((head, shown, middle, at, rest, shown, tail))


def _clipped(text: object, room: int) -> str:
    """`text` as a JSON string of at most `room` characters, cut at its end if need be."""
    if text is None:
        return "null"
    whole = str(text)
    encoded = quoted(whole)
    length = len(whole)
    while len(encoded) > max(room, 2) and length:
        length -= max(1, (len(encoded) - room) // 6)  # one character takes six at most: \\u1234
        encoded = quoted(whole[:length])
    return encoded


def token_of(head: bytes, content: bytes) -> int | None:
    """The stored token, for content that begins with our own head; None when it is torn or damaged.

    Raises CorruptRecord for a number after which no other can be given.
    """
    digits = content[len(head) : len(head) + WIDTH].strip()
    if not digits.isdigit():
        return None
    return _sane(int(digits))


def token_at_both_ends(head: bytes, content: bytes) -> int | None:
    """The token of a whole record that begins with our own head, without parsing the rest.

    None when it is not the same at both ends: torn, damaged, or written by somebody else.
    """
    start = len(head)
    token = content[start : start + WIDTH]
    if len(content) != SIZE or content.rstrip(b" }\n")[-WIDTH:] != token:
        return None
    digits = token.strip()
    return _sane(int(digits)) if digits.isdigit() else None


def _sane(token: int) -> int:
    if token > LARGEST:
        raise CorruptRecord(
            f"its record carries the token {token}, which lifehold cannot have written: "
            "no greater one would fit 64 bits"
        )
    return token


@value
class Record:
    """A record as read. `torn`: it was being written, or damaged.

    Then only the numbers that parse are there.
    """

    token: int | None
    nonce: str | None
    acquired_at: float | None
    owner: Owner | None
    torn: bool


def classify(head: bytes, content: bytes) -> str:
    """Whose content this is.

    FRESH, OURS, COPY (of another file), NEWER (version) or FOREIGN (never written).
    """
    if content.startswith(head):
        return OURS
    if not content.strip(b"\0"):
        return FRESH  # NULs: the power failed after the size was set and before the data was
    if content.startswith(MAGIC):
        version = content[len(MAGIC) :].partition(b",")[0]
        return NEWER if version.isdigit() and int(version) > VERSION else COPY
    return FOREIGN


def parse(content: bytes) -> Record | None:
    """The record in the first bytes of a lock file; None when there is none of ours in it."""
    if not content.startswith(MAGIC):
        return None
    line = content[:SIZE].partition(b"\n")[0]
    try:
        return of_members(loads(line))
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return Record(_salvaged_token(line), None, None, None, torn=True)


def of_members(found: Any) -> Record:
    """The record with these members. Raises CorruptRecord, ValueError, KeyError or TypeError."""
    token, end, stamp = found["token"], found["end"], found["acquired_at_us"]
    fields = {key: found.get(key) for key in (*STRINGS, *NUMBERS)}
    numbers = [token, stamp, fields["pid"], *(fields[key] for key in NUMBERS)]
    numbers[3:] = [number for number in numbers[3:] if number is not None]
    natural = all(type(number) is int and 0 <= number < MOST for number in numbers)
    natural = natural and fields["pid"] < 1 << 32  # of Windows, too
    if token != end or not natural or stamp > LATEST:
        raise ValueError("torn, or numbers that are none")
    if not all(fields[key] is None or type(fields[key]) is str for key in STRINGS):
        raise ValueError("strings that are none")
    fields["label"] = fields["label"] or ""
    nonce = f"{found.get('nonce')}-{token}"
    return Record(_sane(token), nonce, stamp / 1e6, Owner(**fields), torn=False)


def _salvaged_token(line: bytes) -> int | None:
    """The greater copy of the token in a damaged record, None when neither can be read."""
    found = []
    for mark in (b'"token":', b'"end":'):
        digits = line.partition(mark)[2][:WIDTH].strip()
        if digits.isdigit():
            found.append(_sane(int(digits)))
    return max(found, default=None)


def as_holder(record: Record, lock: str) -> Holder:
    """A record as a holder whose life is not judged yet."""
    return Holder(
        record.owner, record.acquired_at, token=record.token, nonce=record.nonce, lock=lock
    )
