"""Every exception of lifehold.

One tree, one `code` each, which feeds logs, metrics labels and exit codes.

Below the public face "not now" is a value (`Held`), never an exception. Each error keeps its facts
as attributes, says in its text what happened, who holds the lock and what to do, and can be
pickled.
"""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .grant import Holder


def pass_up(error: BaseException) -> None:
    """Raise it again if it is an OSError without an errno: no answer of a system call.

    A signal handler raised it, as the classic one for SIGALRM does with TimeoutError. Who expects
    refusals of the system calls this first, so that the handler's error reaches the program.
    """
    if isinstance(error, OSError) and error.errno is None and not isinstance(error, LifeholdError):
        raise error


class LifeholdError(Exception):
    """The root of all errors of lifehold.

    `name`: the lock; `code`: a stable word for logs and metrics; `owner`: who asked, where known;
    `holder`: who holds the lock, where known.
    """

    code = "error"
    name: str | None = None
    owner: str | None = None
    holder: Holder | None = None

    def __init__(self, text: str = "", **facts: object) -> None:
        super().__init__(text)
        self.__dict__.update(facts)

    @property
    def text(self) -> str:
        """The whole message."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.text, self.__dict__.copy())


def _rebuild(kind: type[LifeholdError], text: str, facts: dict[str, Any]) -> LifeholdError:
    error = kind.__new__(kind, text)
    error.args = (text,)
    error.__dict__.update(facts)
    return error


class NotAcquired(LifeholdError):
    """The lock did not become ours. Nothing is held.

    `waited`: seconds; `holder`: who has it, None when it left no trace; `evidence`: how we know
    that the holder is alive; `waiters`: how many others wait for it, None when that cannot be seen.
    """

    code = "not_acquired"
    waited: float = 0.0
    evidence: str = ""
    waiters: int | None = None


class WouldBlock(NotAcquired):
    """Held by someone else, and the caller did not want to wait (`wait=0`)."""

    code = "would_block"


class Timeout(NotAcquired, TimeoutError):
    """Held by someone else for as long as the caller was willing to wait."""

    code = "timeout"


class AcquireCancelled(NotAcquired):
    """The caller's `Cancel` token ended the wait."""

    code = "cancelled"


class SelfDeadlock(NotAcquired, RuntimeError):
    """The asking thread or task holds the lock itself, so the wait would never end."""

    code = "self_deadlock"


class LeaseLost(LifeholdError):
    """We held the lock and may hold it no more: others may be in. Stop the protected work."""

    code = "lease_lost"
    reason: str = ""


class NotHeld(LifeholdError):
    """A bug of the caller: released twice, never acquired, or used in a forked child."""

    code = "not_held"


class StaleToken(LifeholdError):
    """A write was refused because a later holder has been here.

    `token`: ours; `fence`: the least that is admitted.
    """

    code = "stale_token"
    token: int | None = None
    fence: int | None = None


class StoreUnavailable(LifeholdError):
    """The store gave no answer.

    **The outcome is unknown**, the lock may be held in our name (L6).
    """

    code = "store_unavailable"


class UnsafeGround(LifeholdError):
    """This kind of lock cannot exclude here, or the request would endanger others."""

    code = "unsafe_ground"


class CorruptRecord(LifeholdError):
    """The lock carries our mark but a content that lifehold cannot have written."""

    code = "corrupt_record"


class InvalidArgument(LifeholdError, ValueError):
    """A value that no lock can be made from. Names the argument and what it may be."""

    code = "invalid_argument"


class UnknownArgument(InvalidArgument, TypeError):
    """An argument that the call does not take. Names the one that does the same here."""


class SystemRefused(LifeholdError, OSError):
    """The operating system said no: permission, full disk, limits.

    `errno` and `filename` as in OSError. By its errno it is a FileNotFoundError, FileExistsError or
    PermissionError too.
    """

    code = "system_refused"

    def __init__(self, text: str = "", **facts: Any) -> None:
        LifeholdError.__init__(self, text, **facts)
        self.errno, self.strerror = facts.get("errno"), text
        self.filename = facts.get("filename")
        if type(self) is SystemRefused:
            self.__class__ = _BY_ERRNO.get(self.errno or 0, SystemRefused)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {**self.__dict__, "errno": self.errno, "filename": self.filename}
        return _rebuild_refused, (type(self), self.text, facts)


class NoSuchFile(SystemRefused, FileNotFoundError):
    """There is no such file."""


class FileIsThere(SystemRefused, FileExistsError):
    """There is such a file already."""


class NotPermitted(SystemRefused, PermissionError):
    """You may not."""


_BY_ERRNO: dict[int, type[SystemRefused]] = {
    errno.ENOENT: NoSuchFile,
    errno.EEXIST: FileIsThere,
    errno.EACCES: NotPermitted,
    errno.EPERM: NotPermitted,
}


def _rebuild_refused(kind: type[SystemRefused], text: str, facts: dict[str, Any]) -> SystemRefused:
    return kind(text, **facts)
