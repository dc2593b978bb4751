"""The record on disk: one JSON object of fixed size in the lock file itself, format version 1.

Promise: while the lock is held the file tells who holds it and under which token; afterwards, who
held it last. `jq . build.lock` works. A torn write is seen: the token stands at both ends. Rule:
the head ties content to file by the inode number. An unchanged head proves, with no further call,
that the descriptor still leads to the file we opened and that its content is ours to overwrite.
Schema: docs/reference/record.schema.json.
"""

from __future__ import annotations

import os
import sys

from ..core.errors import CorruptRecord
from ..core.fence import LARGEST
from ..core.grant import Holder
from ..core.owner import Owner
from ..core.value import value
from ..runtime import fork
from .ground import LOCAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    from typing import Any

    from .ground import MountInfo
else:
    json = fork.later("json", globals())

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
    members about its end, as runtime/renewal.py makes them.
    """
    head, middle, end = head_of(ino), ',"acquired_at_us":', f'{lease},"end":'
    start = f',"nonce":"{mark}"'
    room = SIZE - len(head) - 3 * WIDTH - len(middle) - len(start) - len(end) - len("}\n")
    who = _members(owner, room)
    tail = "}" + " " * (room - len(who)) + "\n"
    return head, middle.encode(), (start + who + end).encode(), tail.encode()


def _members(owner: Owner, room: int) -> str:
    """The members about an owner, in at most `room` characters."""
    text = ""
    for key in NUMBERS:
        number = getattr(owner, key)
        text += f',"{key}":{"null" if number is None else number}'
    for left, key in zip(range(len(STRINGS) - 1, -1, -1), STRINGS, strict=True):
        # Each may take what is there, less a little for each that comes after it.
        most = room - len(text) - len(key) - 4 - left * 24
        text += f',"{key}":{_clipped(getattr(owner, key), most)}'
    return text


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
        return NEWER if is_newer(content) else COPY
    return FOREIGN


def begins(content: bytes) -> bool:
    """Whether one of ours comes first, damaged as it may be, or behind one short line."""
    line, _, rest = content.partition(b"\n")
    return content.startswith(MAGIC) or (rest.startswith(MAGIC) and len(line) < LINE)


def is_newer(content: bytes) -> bool:
    """L12  Whether a later version of this library wrote it: no more of it is believed."""
    version = content.removeprefix(MAGIC).partition(b",")[0]
    return content.startswith(MAGIC) and version.isdigit() and int(version) > VERSION


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


# ------------------------------------------------------------------------------------------------
# JSON as records hold it, read without the package `json`.
#
# Promise: the same values and the same kinds of errors as `json.loads` of bytes. Rule: the scanner
# is the one that `json` itself uses; the package around it is imported where there is no such
# scanner, or when it is there already. It costs 5 to 9 ms, of `re` most, and a waiter first reads a
# record when its first notice is due.


SPACE = " \t\n\r"


class _Rules:
    """What the scanner asks for: the defaults of `json.loads`."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int = float, int
    parse_constant = staticmethod(float)  # NaN, Infinity, -Infinity


try:
    import _json

    _module: Any = _json
    _scan = _module.make_scanner(_Rules)
except (ImportError, AttributeError):
    _scan = None


def loads(content: bytes | str) -> Any:
    """The value. Raises ValueError, RecursionError."""
    if _scan is None or "json" in sys.modules:
        return json.loads(content)
    text = content if isinstance(content, str) else content.decode("utf-8", "surrogatepass")
    text = text.strip(SPACE)
    try:
        found, end = _scan(text, 0)
    except (StopIteration, SystemError):
        # No JSON. Without the package the scanner of CPython 3.11 cannot say so.
        return json.loads(content)
    if end != len(text):
        raise ValueError("more than one value")
    return found


# ------------------------------------------------------------------------------------------------
# What is found where a lock is its record: ours of any kind, another tool's, or neither.
#
# Promise: `read` never raises, whatever the file holds, and never takes anything for nothing:
# somebody may mean it as a lock. It knows the records of every kind, with or without a process
# number on a line before it; what older tools leave under such a name, a bare process number, or
# JSON with `pid` and `created`; and records of a newer lifehold, of which it believes no more than
# their version and their ttl (L12). The token stands in a record twice: a torn write is seen.
# Writers: local/record.py.


LINE = 12  # bytes of a first line like liblockfile's: a process number and a newline
READ_SIZE = SIZE + LINE  # bytes that a reader asks for
HEX, LONGEST_NONCE = "0123456789abcdef", 85
LONGEST_TTL = 100 * 365 * 86400.0
CURRENT, OLDER, FROM_NEWER, UNREADABLE = "ours", "older", "newer", "unreadable"
UNSEEN = b"?"  # the content of one that may not, or cannot, be read at all
HELD, RELEASED, VOID, WAITING = "held", "released", "void", "waiting"
STAGES = frozenset({HELD, RELEASED, VOID, WAITING})
LIVE = frozenset({HELD, WAITING})  # a process stands behind it, or has died


@value
class ParsedRecord:
    """A record as found.

    `state`: OURS, whole and of a known version; OLDER, another tool's, which names a process;
    NEWER, of a version this one does not know; UNREADABLE. `kind` of lock; `ground`: the file
    system that its writer saw; `witness`: whether its writer keeps flock(2) on it while it lives;
    `stage`: HELD, RELEASED, VOID, a number that was never held, or WAITING, in line for it;
    `after`: the nonce of the record it came after; `token`: also what can be saved of a damaged
    one; `more`: it says more than another tool's record does, and may be somebody's data.
    """

    state: str
    content: bytes
    kind: str = ""
    owner: Owner | None = None
    since: float | None = None
    token: int | None = None
    nonce: str | None = None
    ttl: float | None = None
    ground: str | None = None
    witness: bool = False
    stage: str = HELD
    after: str = ""
    more: bool = False

    @property
    def one_kernel(self) -> bool:
        """Whether its writer saw a file system that one kernel alone can mount (L2).

        A file server sees what it exports as a local disk, so this is one view of two.
        """
        return self.state == OLDER or self.ground in LOCAL


def read(content: bytes) -> ParsedRecord:
    """What is in the first bytes of a file that may be a lock."""
    body = content
    if not content.startswith(MAGIC):
        if not begins(content):
            return _older(content)
        body = content.partition(b"\n")[2]
    line = body[:SIZE].partition(b"\n")[0]
    version = line[len(MAGIC) :].partition(b",")[0]
    newer = version.isdigit() and len(version) < 10 and int(version) > VERSION
    try:
        found = loads(line)
        given, ground = found.get("ttl"), found.get("ground")
        sane = type(given) in (float, int) and 0 < given <= LONGEST_TTL
        ttl = float(given) if sane else None
        if newer:
            return ParsedRecord(FROM_NEWER, content, ttl=ttl)
        whole = of_members(found)
        stage, after = found.get("state", HELD), found.get("after", "")
        kind = found.get("kind", "" if "state" in found else "kernel")
        texts = all(type(each) is str for each in (kind, after, "" if ground is None else ground))
        texts = texts and not str(found.get("nonce")).strip(HEX) and len(after) <= LONGEST_NONCE
        if not texts or stage not in STAGES or (given is not None and not sane):
            raise ValueError("not as lifehold writes it")
    except (CorruptRecord, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return ParsedRecord(FROM_NEWER if newer else UNREADABLE, content, token=_saved(line))
    return ParsedRecord(
        CURRENT,
        content,
        kind,
        whole.owner,
        whole.acquired_at,
        whole.token or None,
        whole.nonce,
        ttl,
        ground,
        found.get("witness") is True,
        stage,
        after,
    )


def _saved(body: bytes) -> int | None:
    """The token of a damaged record, as far as it can be read."""
    try:
        found = parse(body)
    except CorruptRecord:
        return None
    return found.token if found is not None else None


def _older(content: bytes) -> ParsedRecord:
    """A bare number, alone or on the first of some lines; JSON with `pid`."""
    try:
        text = content.decode("ascii").strip()
    except ValueError:
        return ParsedRecord(UNREADABLE, content)
    if text.startswith("{"):
        return _older_json(content, text)
    lines = text.split("\n")
    number = lines[0].strip()
    if not number.isdigit() or len(number) > 10 or len(content) >= SIZE:
        return ParsedRecord(UNREADABLE, content)
    if not 0 < int(number) < 1 << 31:
        # 0: liblockfile's word for a holder it does not name
        return ParsedRecord(UNREADABLE, content)
    host = lines[1].strip() if len(lines) > 1 else None
    return ParsedRecord(OLDER, content, "pid", Owner(int(number), host=host or None))


def _older_json(content: bytes, text: str) -> ParsedRecord:
    """L2  Data may name a process too: only OF_OLDER are the members of a lock's record."""
    try:
        found = loads(text)
        pid, created = found.get("pid"), found.get("created")
        host = found.get("host", found.get("hostname"))
    except (ValueError, AttributeError, RecursionError):
        return ParsedRecord(UNREADABLE, content)
    if type(pid) is not int or not 0 < pid < 1 << 31:
        return ParsedRecord(UNREADABLE, content)
    since = float(created) if type(created) in (int, float) and 0 < created < 1e11 else None
    owner = Owner(pid, host=host if type(host) is str else None)
    more = any(not isinstance(found[key], OF_OLDER.get(key, ())) for key in found)
    return ParsedRecord(OLDER, content, "json", owner, since, more=more)


NAME = (str, type(None))
OF_OLDER: dict[str, tuple[type, ...]] = {
    "pid": (int,),
    "created": (int, float, *NAME),
    "host": NAME,
    "hostname": NAME,
}


def temporary(path: str, nonce: str) -> str:
    """A name beside a lock that nobody has used before; short, whatever the lock's name is."""
    return f"{os.path.dirname(path)}/{TEMPORARY}{nonce}"


TEMPORARY = ".lifehold-"


def is_temporary(name: str) -> bool:
    """Whether a file name is one of `temporary`'s."""
    nonce = name[len(TEMPORARY) :]
    return name.startswith(TEMPORARY) and len(nonce) == 32 and not nonce.strip("0123456789abcdef")


def is_unpublished(name: str) -> bool:
    """Whether it is a name that a record, or a folder of records, has before it is in its place.

    Of 16 or 32 hexadecimal digits, or as a bid's; of kind "link" as liblockfile's, which begins
    with a process number. Any other name that begins so is a lock that somebody has called so.
    """
    nonce = name.removeprefix(TEMPORARY)
    if nonce == name:
        return name.startswith(".lk") and name[3:8].isdigit() and len(name) <= 31
    return len(nonce) in (16, 32, 36) and not nonce.strip("0123456789abcdef-")


# ------------------------------------------------------------------------------------------------
# The texts of the records that are the lock: of every kind but the kernel's.
#
# The record of local/record.py with more members: its `kind`, the lease (`ttl`, `renewals`),
# whether it is held still (`state`), whom it came after (`after`, a nonce), and on what ground its
# writer saw it (`ground`, `witness`). Whoever judges it uses the weaker of both views: a file
# server sees as a local disk what its clients see as a network file system.
#
# Promise: one JSON object of fixed size (`jq . build.lock` works) with numbers of fixed width, so
# that a reader sees the old or the new one, or sees that it is torn. In the files of `soft` and
# `link` a line with the process number comes first, and all of it takes 1024 bytes at most:
# filelock's SoftFileLock reads that as a holder on another host, whom it waits for; what it cannot
# read it removes after 2 s. Reader: local/record.py.


ROOM = SIZE - LINE  # of a record, so that a line before it keeps the file within 1024 bytes
FRONT = b'{"lifehold":%d,"kind":"%s","renewals":'
LONGEST_AFTER = 53  # bytes of a nonce: 32 digits, a dash, a token


class RecordTemplate:
    """All of a record but its numbers and its nonce. Made once for a thread, label and file system.

    `more`: members of a kind's own, as JSON, each after a comma.
    `numbered(...)`: a whole record; `renewed(...)`: the bytes of a renewal, and where they go.
    """

    __slots__ = ("_constant", "_created", "_front", "_spare")

    def __init__(
        self,
        kind: str,
        owner: Owner,
        ttl: float | None,
        place: MountInfo,
        *,
        witness: bool,
        line: bytes = b"",
        more: str = "",
    ) -> None:
        self._front = line + FRONT % (VERSION, kind.encode())
        self._created = 0, b"%20d" % 0  # the last second, and as it is written
        text = f',"ttl":{"null" if ttl is None else float(ttl)},"ground":"{place.kind}"'
        text += f',"witness":{str(witness).lower()}{more}'
        fixed = len(self._front) - len(line) + MOVING + 32 + LONGEST_AFTER
        room = ROOM - fixed - len(text)
        who = _members(owner, room)
        self._constant = b'"' + (text + who).encode() + b',"end":'
        self._spare = b" " * (room - len(who) + 32 + LONGEST_AFTER)

    def numbered(
        self,
        ino: int,
        nonce: str,
        token: int,
        stamp: int,
        *,
        stage: str = HELD,
        renewals: int = 0,
        after: str = "",
    ) -> bytes:
        """A whole record. `stamp`: UTC microseconds."""
        second, created = self._created
        if second != stamp // 1_000_000:
            second = stamp // 1_000_000
            created = b"%20d" % second
            self._created = second, created
        shown = b"%20d" % token
        at = shown if stamp == token else b"%20d" % stamp
        count = b"%20d" % renewals if renewals else NONE
        return b"".join(
            (
                self._front,
                count,
                b',"state":',
                STAGE[stage],
                b',"created":',
                created,
                b',"ino":',
                b"%20d" % ino,
                b',"token":',
                shown,
                b',"acquired_at_us":',
                at,
                b',"nonce":"',
                nonce.encode(),
                b'","after":"',
                after.encode(),
                self._constant,
                shown,
                b"}",
                self._spare[len(nonce) + len(after) + 1 :],
                b"\n",
            )
        )

    def drawn(self, text: bytes, nonces: int, token: int, stamp: int) -> bytes:
        """A record that `numbered` made, under a token and time. `nonces`: their length in it."""
        at = len(self._front) + BEFORE_TOKEN
        end = at + BETWEEN + nonces + len(self._constant)
        shown = b"%20d" % token
        return b"".join(
            (
                text[:at],
                shown,
                b',"acquired_at_us":',
                shown if stamp == token else b"%20d" % stamp,
                text[at + STAMPED : end],
                shown,
                text[end + 20 :],
            )
        )

    def renewed(self, renewals: int, stamp: int) -> tuple[bytes, int]:
        """The bytes of the n-th renewal, and their place. Older tools go by `created`."""
        changing = b'%20d,"state":%b,"created":%20d' % (
            renewals,
            STAGE[HELD],
            stamp // 1_000_000,
        )
        return changing, len(self._front)


# Of constant width, so that a renewal and a release move nothing.
STAGE = {stage: b"%12s" % f'"{stage}"'.encode() for stage in STAGES}
NONE = b"%20d" % 0
STAGE_WIDTH, BEFORE_STAGE = 12, len(b'%20d,"state":' % 0)
BEFORE_TOKEN = len(b'%20d,"state":%12s,"created":%20d,"ino":%20d,"token":' % (0, b"", 0, 0))
STAMPED = len(b'%20d,"acquired_at_us":%20d' % (0, 0))
BETWEEN = len(b'%20d,"acquired_at_us":%20d,"nonce":"","after":"' % (0, 0))
# Bytes of all members that change, nonces left out, with what closes the record.
MOVING = len(
    b'%20d,"state":%12s,"created":%20d,"ino":%20d,"token":%20d,"acquired_at_us":%20d,"nonce":"",'
    b'"after":"","end":%20d}' % (0, b"", 0, 0, 0, 0, 0)
)


def given_back(content: bytes, kind: str) -> tuple[int, str] | None:
    """(token, nonce) of a record that says it is released; None: read it with care (record.py)."""
    front = FRONT % (VERSION, kind.encode())
    at = len(front) + BEFORE_TOKEN
    shown, stage = content[at : at + 20], len(front) + BEFORE_STAGE
    if not content.startswith(front) or content[stage : stage + STAGE_WIDTH] != STAGE[RELEASED]:
        return None
    digits = shown.strip()
    mark = content[at + STAMPED + 10 : content.find(b'"', at + STAMPED + 10)].decode("latin-1")
    if not content.endswith(b"\n") or content.rstrip(b" }\n")[-20:] != shown:
        return None  # torn
    if not digits.isdigit() or int(digits) > LARGEST or not mark or mark.strip(HEX):
        return None
    return int(digits), f"{mark}-{int(digits)}"


class WrittenRecord:
    """The record of one grant of numbered records or of a lock file, changed and written whole."""

    __slots__ = (
        "after",
        "ino",
        "line",
        "mark",
        "number",
        "renewals",
        "stage",
        "stamp",
        "text",
        "words",
    )

    def __init__(
        self,
        words: RecordTemplate,
        ino: int,
        token: int,
        stamp_us: int,
        *,
        after: str = "",
        line: bytes = b"",
        mark: str = "",
    ) -> None:
        self.words, self.ino, self.mark = words, ino, mark or os.urandom(8).hex()
        self.number, self.stamp, self.line = token, stamp_us, line
        self.after = after if len(after) <= LONGEST_AFTER else ""
        self.renewals, self.stage = 0, HELD
        self.text = self._written()

    @property
    def nonce(self) -> str:
        return f"{self.mark}-{self.number}"

    def now(self, stage: str) -> bytes:
        """The whole record at another stage; a renewal when it is held as before."""
        self.renewals += stage == HELD
        self.stage = stage
        self.text = self._written()
        return self.text

    def renumbered(self, token: int, stamp_us: int) -> bytes:
        """The same record under a later token and time."""
        self.number, self.stamp = token, stamp_us
        self.text = self._written()
        return self.text

    def _written(self) -> bytes:
        return self.line + self.words.numbered(
            self.ino,
            self.mark,
            self.number,
            self.stamp,
            stage=self.stage,
            renewals=self.renewals,
            after=self.after,
        )
