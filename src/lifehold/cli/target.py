"""What a word of the command line names: a NAME or a PATH. One rule for every command.

 - a word with a slash, or a URL, is a PATH: ./orders.lock, /run/x.pid, sqlite:////var/x.db#a
 - `--name WORD` is a NAME
 - a bare word that ends in .lock, .lck or .pid is refused, and both spellings are told: as a NAME
   it would be another lock than the file that was meant. Unless that NAME has been used: then it is
   the NAME, and that is told
 - any other bare word is a NAME, whatever lies in the working folder. If a lock file of that name
   lies there, one line says so

Where a folder is meant (ls, doctor, top) a bare word is refused, and both spellings are told.
`lifehold flock` and `lifehold dotlockfile` take what their originals take, which are paths.
"""

from __future__ import annotations

import os

from ..core.mask import printable
from ..local import lock_names
from ..runtime import fork
from .row import Option, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pwd
    from collections.abc import Hashable
    from typing import Any

    from ..core import acquire as waiting
    from ..core import explain, nearest, ports
    from ..core.events import Waiting
    from ..ops import families
    from . import notice, render
else:
    explain = fork.later("lifehold.core.explain", globals())
    nearest = fork.later("lifehold.core.nearest", globals())
    families = fork.later("lifehold.ops.families", globals())
    notice = fork.later("lifehold.cli.notice", globals())
    ports = fork.later("lifehold.core.ports", globals())
    render = fork.later("lifehold.cli.render", globals())
    waiting = fork.later("lifehold.core.acquire", globals(), "waiting")
    pwd = fork.later("pwd", globals())

# What every help says of it.
RULE = """\
A word with a slash, or a URL, is a PATH: ./orders.lock. Any other is a NAME.
One that ends in .lock, .lck or .pid is refused unless that NAME is in use:
write ./orders.lock for the file, or --name orders.lock."""


class GivenName(str):
    """A word that is a NAME because `--name` said so."""

    __slots__ = ()


def name(text: str) -> GivenName:
    """The value of `--name`."""
    if "/" in text:
        raise ValueError(f"a NAME has no slash: {text!r} is a PATH, and is given without --name")
    return GivenName(text)


NAMED = Option(
    "called",
    ("--name",),
    "the lock with this NAME, whatever it ends\nin; may be repeated",
    "WORD",
    name,
    many=True,
)
_told: set[str] = set()


def is_path(word: str) -> bool:
    """Whether it is a PATH or a URL. `.` and `..` name folders, and no lock."""
    return "/" in word or word in (".", "..")


def lock(word: str) -> str:
    """The word, which names a lock. Raises Usage; tells what may surprise."""
    if isinstance(word, GivenName) or not word or word[0] == "-":
        return word
    if is_path(word):
        return path(word)
    if word.endswith(lock_names.ENDS):
        where = lock_names.used(word)
        if not where:
            raise Usage(
                f"'{printable(word)}' may be a file of this folder or a NAME: write "
                f"{_quote(f'./{word}')} for the file, or --name {_quote(word)} for the NAME"
            )
        _tell(
            f"'{printable(word)}' is the NAME, which has the lock file {_quote(where)}; for the "
            f"file in this folder write {_quote(f'./{word}')}"
        )
    elif os.path.lexists(word) and _is_lock(word):
        _tell(
            f"'{printable(word)}' is the NAME; for the lock in this folder write "
            f"{_quote(f'./{word}')}"
        )
    return word


def folder(word: str, command: str) -> str:
    """The word, which names a folder, or a store. Raises Usage."""
    if is_path(word):
        return path(word)
    if not word:
        raise Usage("DIR is empty: an unset variable?")
    raise Usage(
        f"'{printable(word)}' is a NAME, and `lifehold {command}` takes a folder: write "
        f"{_quote(f'./{word}')} for the folder; for the lock:  lifehold who --name {_quote(word)}"
    )


def tell_folder(word: str, *, refuse: bool = False) -> None:
    """That a NAME is not the folder of that name here. `refuse`: raises Usage."""
    if isinstance(word, GivenName) or is_path(word):
        return
    if refuse:
        folder(word, "clear -R")
    if os.path.isdir(word):
        here = _quote(f"./{word}")
        _tell(f"'{printable(word)}' is the NAME; for the folder here write {here}")


def path(word: str) -> str:
    """The word, which is a PATH or a URL. Raises Usage; tells what may surprise."""
    head, slash, rest = word.partition("/")
    if slash and head[:1] == "~":
        raise Usage(
            f"'{printable(word)}' begins with a ~ that the shell has left as it is: write "
            f'"$HOME/{printable(rest)}", or {_quote(f"./{word}")} for a folder of that name'
        )
    if word.startswith("sqlite:///") and word[10:11] not in ("/", ""):
        where = word.partition("#")[0].partition("?")[0][10:]
        here = os.path.abspath(where)
        _tell(
            f"'{printable(where)}' is looked for from the working folder on, which is not the "
            f"same for each job: here sqlite:///{printable(here)} is meant"
        )
    return word


def first_missing(word: str, where: str) -> str:
    """The outermost folder on the way to the lock file `where` that is not there yet.

    "": none, or not named by the user, who typed `word`.
    """
    if not is_path(word):
        return ""
    if lock_names.is_store(where):
        if not where.startswith("sqlite:///"):
            return ""
        where = where.partition("#")[0].partition("?")[0][10:]
    missing, up = "", os.path.dirname(os.path.abspath(where))
    while not os.path.lexists(up):
        missing, up = up, os.path.dirname(up)
    return missing


def tell_made(missing: str) -> None:
    """A folder that was made on the way: a typo, or a disk that is not mounted, looks like that."""
    if missing and os.path.isdir(missing):
        _tell(f"the folder {_quote(missing)} was not there, and has been made")


def of_users(word: str) -> list[tuple[str, str]]:
    """(user, lock file) of every local user who has a lock with this plain name. For root alone."""
    if is_path(word) or os.name != "posix" or os.geteuid() or "LIFEHOLD_DIR" in os.environ:
        return []
    found: list[tuple[str, str]] = []
    ours = lock_names.candidates()
    for each in pwd.getpwall():
        own = f"{each.pw_dir.rstrip('/')}/.local/state/lifehold"
        file = f"{own}/{word}{lock_names.SUFFIX}"
        if own not in ours and file not in dict(found).values() and os.path.lexists(file):
            found.append((each.pw_name, file))
    return found


def tell_of_users(word: str) -> None:
    """Root's names are apart from all others: who asks as root may mean another's."""
    for user, file in of_users(word):
        render.say(
            f"user {printable(user)} has a lock of this name too, which excludes nobody here:  "
            f"lifehold who {_quote(file)}"
        )


def tell_like(word: str, where: str) -> None:
    """That a NAME which nobody has used, `where` its lock file, is like one that is in use."""
    if is_path(word) or lock_names.is_store(where) or _has_trace(where):
        return
    known: list[str] = []
    for place in lock_names.candidates():
        try:
            known += (each for each in os.listdir(place) if each.endswith(lock_names.SUFFIX))
        except OSError:
            continue
    names = [each.removesuffix(lock_names.SUFFIX) for each in known]
    if word not in names and (near := nearest.nearest(word, names)):
        render.say(f"no lock '{printable(word)}' was ever used; did you mean '{printable(near)}'?")


def _has_trace(where: str) -> bool:
    """Whether anything of a lock file lies there: itself, or what a removed one has left."""
    return any(os.path.lexists(where + end) for end in ("", ".token", ".log"))


def _is_lock(word: str) -> bool:
    """Whether what lies there looks like a lock: empty, of ours, or of a tool that is known."""
    try:
        found = os.lstat(word)
        here = os.path.abspath(word)
        if os.path.isfile(here) and not found.st_size:
            return True
        return families.recognised(families.LockPath(here)) is not None
    except (OSError, ValueError):
        return False


def _tell(text: str) -> None:
    """Once."""
    if text not in _told:
        _told.add(text)
        render.say(text)


def _quote(text: str) -> str:
    quote = explain.quote
    return quote(text)


class NoticedLock:
    """Called by what the user typed; tells who waits on stderr instead of in a log."""

    __slots__ = ()

    notices: Any
    for_all: bool
    typed: str

    def called(self: Any, typed: str, address: lock_names.Address) -> None:
        self.typed, self._name = typed, lock_names.shown(typed)
        self.for_all = address.shared
        self.notices = None  # made when there is something to tell, which is rare

    @property
    def _target(self: Any) -> str:
        return self._name  # type: ignore[no-any-return]

    def _by_asker(self: Any, key: Hashable) -> list[str]:
        """What to do next: commands that run as printed."""
        mine: list[str] | None = super()._by_asker(key)  # type: ignore[misc]
        option = self._mechanism.option if ports.is_named(self._mechanism) else ""
        return mine or explain.remedies(self._name, option)

    def _tell_waiting(self: Any, told: Waiting) -> None:
        if self.notices is None:
            far = ports.is_far(self._mechanism)
            self.notices = notice.WaitNotice(None if far else lambda: waiting.look(self._mechanism))
        self.notices.tell(told)
