"""Where a lock lives that is named by a URL: `file:///var/lib/jobs#payments/42`.

The folder stands before the `#`, the name of the lock behind it. A name is any text; its file is
NAME.lock with every character percent-encoded that is not a letter, digit, dot, dash or underscore,
so that two names never share a file, and no name leaves the folder.
"""

from __future__ import annotations

import os

from ..core.errors import InvalidArgument
from ..core.mask import masked_urls, printable

SCHEME = "file://"
SUFFIX = ".lock"
# Bytes of an encoded name: a slot's number, a token file and a temporary name need room beside it.
LONGEST = 200
PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def path_of(url: str) -> str:
    """The lock file of a URL with a name, absolute. Raises InvalidArgument."""
    folder, mark, name = url.partition("#")
    if not mark:
        raise InvalidArgument(
            f"{printable(url)!r} names a folder of locks and no lock: put the name behind a #, for "
            f"example {printable(url)}#nightly"
        )
    return os.path.join(folder_of(folder, url), file_of(name))


def folder_of(url: str, whole: str = "") -> str:
    """The folder of a URL without a name. Raises InvalidArgument, which shows the `whole` URL."""
    shown = printable(masked_urls(whole or url))
    if not url.startswith(SCHEME):
        scheme = url.partition("://")[0]
        raise InvalidArgument(
            f"{shown!r} is a URL of {scheme!r}, and here file:///FOLDER#NAME alone is understood. "
            "Other stores have connect(URL).read_write(NAME) and .semaphore(NAME, PERMITS); to "
            "lock a file write its path without a scheme"
        )
    path = url[len(SCHEME) :]
    if not path.startswith("/"):
        raise InvalidArgument(
            f"{shown!r}: a file URL has three slashes and the folder from the root on, for example "
            "file:///var/lib/jobs; another machine's files cannot be reached by it"
        )
    if "?" in path:
        raise InvalidArgument(f"{shown!r}: a file URL takes no options; give them as arguments")
    try:
        raw = decoded(path)
    except ValueError:
        raise InvalidArgument(f"{shown!r}: after a % stand two hexadecimal digits") from None
    if b"\0" in raw:
        raise InvalidArgument(f"{shown!r} must not contain a NUL character")
    return os.path.normpath(os.fsdecode(raw))


def url_of(folder: str) -> str:
    """The URL of an absolute folder."""
    return SCHEME + "".join(_encoded(os.fsencode(folder), PLAIN | {ord("/")}))


def file_of(name: str) -> str:
    """The file of a name, without its folder. Raises InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument(f"a lock's name must be a str, not {type(name).__name__} {name!r}")
    if not name:
        raise InvalidArgument("a lock's name must not be empty")
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"a lock's name cannot be {name!r}: {error.reason}") from error
    file = "".join(_encoded(raw, PLAIN))
    if file[0] == ".":
        file = "%2E" + file[1:]
    if len(file) > LONGEST:
        raise InvalidArgument(
            f"a lock's name is too long: {len(file)} bytes once encoded, {LONGEST} at most: "
            f"{printable(name[:40])!r}..."
        )
    return file + SUFFIX


def name_of(file: str) -> str | None:
    """The name whose lock such a file is, None for another file."""
    if not file.endswith(SUFFIX) or "#" in file:
        return None
    try:
        name = decoded(file.removesuffix(SUFFIX)).decode()
        return name if name and file_of(name) == file else None
    except (ValueError, InvalidArgument):
        return None


def decoded(text: str) -> bytes:
    """Percent-encoded text as bytes. Raises ValueError."""
    first, *rest = os.fsencode(text).split(b"%")
    parts = [first]
    for each in rest:
        if len(each) < 2:
            raise ValueError(text)
        parts += [bytes.fromhex(each[:2].decode("ascii")), each[2:]]
    return b"".join(parts)


def _encoded(raw: bytes, plain: frozenset[int]) -> list[str]:
    return [chr(byte) if byte in plain else f"%{byte:02X}" for byte in raw]
