"""Where a lock lives that is called by a plain name, such as `nightly-report`.

A name without a slash is the file NAME.lock in the first of these folders; with one it is a path.
 1. $LIFEHOLD_DIR, when it is set
 2. /var/lib/lifehold, when we may write there: for root it is made when it is missing
 3. $XDG_STATE_HOME/lifehold, by default ~/.local/state/lifehold
Never the runtime folder of a login, which goes at logout: cron and login must meet.

Who shares a name: the processes of one user, and root is one of them. /var/lib/lifehold is made
0711 and not 1777, since in a folder open to all anybody could hold the locks of root's jobs for
ever, and since a folder that appears one day would move the names of all users, away from locks
held at that moment. For the first reason root's lock files there are 0600: who may open a file may
lock it. Who wants names for all users says so once, and locks made there are 0666:
    install -d -m 1777 /var/lib/lifehold

A name that exists in both 2 and 3 is two locks that do not exclude each other: `doubles` tells.
Who set LIFEHOLD_DIR has said which one is meant, and is told nothing.
"""

from __future__ import annotations

import os
import stat

from ..core.errors import InvalidArgument, LifeholdError, SystemRefused
from ..core.mask import masked_url, printable
from ..core.value import value
from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pwd

    from ..core import address as torn
else:
    torn = fork.later("lifehold.core.address", globals(), "torn")
    pwd = fork.later("pwd", globals())


MACHINE = "/var/lib/lifehold"
SUFFIX = ".lock"
ENDS = (".lock", ".lck", ".pid")  # of lock files: a bare word that ends so is hardly a name
PRIVATE = 0o600  # L7  of root's lock files
OPEN, CLOSED = 0o755, 0o711  # of MACHINE: as the first version made it, and as it is now
LONGEST_NAME = 255 - len(SUFFIX)  # bytes; NAME_MAX of every file system that matters


@value
class Address:
    """Where a name leads.

    `path`: of the lock file, absolute for a plain name; `shared`: all users may lock it;
    `doubles`: lock files of the same name in the other folder; `mode`: of a lock file made there,
    None: as the umask leaves it.
    """

    path: str
    shared: bool = False
    doubles: tuple[str, ...] = ()
    mode: int | None = None


def is_store(path: str) -> bool:
    """Whether this is the URL of a store, or of a lock in one, and no file."""
    return "://" in path and not path.startswith("file:")


def shown(given: str) -> str:
    """A NAME, PATH or URL as it may be told: of a store's URL without its password (L11)."""
    return str(torn.without_password(given)) if is_store(given) else given


def address(given: str) -> Address:
    """The lock file of a NAME, PATH or URL. Raises InvalidArgument, SystemRefused."""
    if ":" in given:
        torn.refuse_lost_slash(given)
    if is_store(given):
        return Address(given)
    if "://" in given:
        return Address(path_of(given))
    if "/" in given:
        return Address(given)
    check_name(given)
    folders = candidates()
    files = [f"{folder}/{given}{SUFFIX}" for folder in folders]
    try:
        found = os.stat(folders[0])
        shared, mode = bool(found.st_mode & 0o002), PRIVATE if _is_roots_own(found) else None
    except OSError:  # it will be made, and not for all
        shared, mode = False, PRIVATE if _is_root() else None
    doubles = tuple(file for file in files[1:] if os.path.lexists(file))
    return Address(files[0], shared, doubles, mode)


def used(word: str) -> str:
    """The lock file of a plain name that has one, else ""."""
    try:
        where = address(word)
    except LifeholdError:
        return ""
    return next((each for each in (where.path, *where.doubles) if os.path.lexists(each)), "")


def mode_of(path: str) -> int | None:
    """The mode of a lock file that is made at `path`, as of an `Address`."""
    if not _is_root() or os.path.dirname(path) != candidates()[0]:
        return None
    try:
        return PRIVATE if _is_roots_own(os.stat(os.path.dirname(path))) else None
    except OSError:
        return PRIVATE


def _is_root() -> bool:
    return os.name == "posix" and os.geteuid() == 0


def _is_roots_own(folder: os.stat_result) -> bool:
    """Whether root asks, and nobody else may make files in it."""
    return _is_root() and folder.st_uid == 0 and not folder.st_mode & 0o022


def check_name(name: str) -> None:
    """Raises InvalidArgument for what cannot be a plain name; its text says what to do instead."""
    shown = printable(name)
    if not name:
        raise InvalidArgument("the lock needs a name, for example 'nightly-report'")
    if name in (".", ".."):
        raise InvalidArgument(
            f"{shown!r} names a folder: name a lock, for example 'nightly-report'"
        )
    if name.startswith("-"):
        raise InvalidArgument(f"a name must not begin with a dash: write './{shown}' for a path")
    if not name.isprintable():
        raise InvalidArgument(
            f"'{shown}' has characters that cannot be printed: a name is letters, digits and the "
            "like; any other file name can be given as a path"
        )
    length = len(os.fsencode(name))
    if length > LONGEST_NAME:
        raise InvalidArgument(
            f"the name is too long: {length} bytes, {LONGEST_NAME} at most; choose a shorter one"
        )


def candidates() -> list[str]:
    """The folders for plain names: the one to use, then one where a double may lie."""
    chosen = os.environ.get("LIFEHOLD_DIR")
    if chosen and not os.path.isabs(chosen):
        raise InvalidArgument(
            f"LIFEHOLD_DIR must be an absolute path, not {chosen!r}: a job and a terminal have "
            "different working folders and would not meet"
        )
    if chosen:
        return [chosen.rstrip("/") or "/"]
    own = _own_folder()
    if own is not None and not _writable(MACHINE):
        folders = [own, MACHINE]
    else:
        folders = [MACHINE, *([own] if own else [])]
    if own is None and not _writable(MACHINE):
        raise SystemRefused(
            f"there is no folder for plain names: {MACHINE} cannot be written, and this user has "
            "no home. Set LIFEHOLD_DIR to a folder, or give a path"
        )
    return list(dict.fromkeys(folders))


def private_folders() -> list[str]:
    """Where a file may stand that no other user may make or swap, the usual folder first.

    Whether that is so, the caller asks of each: runtime/rights.py.
    """
    folders = candidates()
    if _is_root():
        # HOME may be that of the user who called sudo
        folders += [MACHINE, f"{pwd.getpwuid(0).pw_dir}/.local/state/lifehold"]
    elif (own := _own_folder()) is not None:
        folders.append(own)
    return list(dict.fromkeys(folders))


def _own_folder() -> str | None:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the specification: a relative one is invalid and to be ignored
        home = os.path.expanduser("~")  # without HOME: from the table of users
        if not os.path.isabs(home):
            return None
        state = f"{home.rstrip('/')}/.local/state"
    return f"{state.rstrip('/')}/lifehold"


def _writable(folder: str) -> bool:
    """Whether we may make files there, or make the folder itself."""
    if os.path.isdir(folder):
        return os.access(folder, os.W_OK | os.X_OK)
    return not os.path.lexists(folder) and os.access(os.path.dirname(folder), os.W_OK | os.X_OK)


def make_folder(path: str) -> str:
    """Make the folder of the machine's names when `path` lies there and it is missing.

    With a fixed mode: under root's umask of 077 nobody else could see who holds what. Other
    folders are made on demand, by the lock. What the first version has made there is tightened:
    the answer tells of it, "" for nothing.
    """
    if is_store(path):
        path = f"{candidates()[0]}/history"  # of its runs
        if os.path.dirname(path) != MACHINE:
            os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.dirname(path) != MACHINE or os.path.isdir(MACHINE):
        return _tightened(path)
    try:
        os.mkdir(MACHINE, CLOSED)
        os.chmod(MACHINE, CLOSED)
    except FileExistsError:
        pass
    except OSError as error:
        raise SystemRefused(
            f"{MACHINE!r} cannot be made: {error.strerror}. Set LIFEHOLD_DIR to a folder",
            errno=error.errno,
            filename=MACHINE,
        ) from error
    return ""


def _tightened(path: str) -> str:
    """L7  Nobody else may lock root's names: a file that others may read, and not write, is closed.

    One that others may write was made so by order (`shared`), and stays.
    """
    if not _is_root() or not path.endswith(SUFFIX) or not _is_open(path):
        return ""
    folder = os.path.dirname(path)
    try:
        found = os.stat(folder)
    except OSError:
        return ""
    if folder != candidates()[0] or not _is_roots_own(found):
        return ""
    slots = f"{path.removesuffix(SUFFIX)}#"
    for each in (path, *(f"{folder}/{name}" for name in os.listdir(folder))):
        if each == path or (each.startswith(slots) and _is_open(each)):
            os.chmod(each, PRIVATE)
    if folder == MACHINE and stat.S_IMODE(found.st_mode) == OPEN:
        os.chmod(MACHINE, CLOSED)
    return (
        f"{printable(path)!r} was readable by all users, each of whom could hold it for ever: it "
        "is root's alone now (0600). To share names with all users: "
        f"install -d -m 1777 {printable(folder)}"
    )


def _is_open(path: str) -> bool:
    """Whether it is a file of root's that others may read, and not write."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    ours = stat.S_ISREG(found.st_mode) and found.st_uid == 0 and found.st_nlink == 1
    return ours and found.st_mode & 0o006 == 0o004


# ------------------------------------------------------------------------------------------------
# Where a lock lives that is named by a URL: `file:///var/lib/jobs#payments/42`.
#
# The folder stands before the `#`, the name of the lock behind it. A name is any text; its file is
# NAME.lock with every character percent-encoded that is not a letter, digit, dot, dash or
# underscore, so that two names never share a file, and no name leaves the folder.


SCHEME = "file://"
DATABASES = ".lock"
# Bytes of an encoded name: a slot's number, a token file and a temporary name need room beside it.
LONGEST = 200
PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def path_of(url: str) -> str:
    """The lock file of a URL with a name, absolute. Raises InvalidArgument."""
    folder, mark, name = url.partition("#")
    if not mark:
        shown = printable(masked_url(url))
        raise InvalidArgument(
            f"{shown!r} names a folder of locks and no lock: put the name behind a #, for "
            f"example {shown}#nightly"
        )
    return os.path.join(folder_of(folder, url), file_of(name))


def folder_of(url: str, whole: str = "") -> str:
    """The folder of a URL without a name. Raises InvalidArgument, which shows the `whole` URL."""
    shown = printable(masked_url(whole or url))
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
    return file + DATABASES


def name_of(file: str) -> str | None:
    """The name whose lock such a file is, None for another file."""
    if not file.endswith(DATABASES) or "#" in file:
        return None
    try:
        name = decoded(file.removesuffix(DATABASES)).decode()
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
