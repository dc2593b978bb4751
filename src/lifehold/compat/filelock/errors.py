"""What goes wrong, under filelock's names.

`Timeout` adds who holds the lock: `holder`, and lifehold's whole text as the exception's notes,
which a traceback prints. Its `str` is filelock's one line, because programs match that.
Rule: after a wait the holder is looked for at once; after a single try, when somebody asks.
Programs that try again and again do not pay for it.
"""

from __future__ import annotations

from typing import Any, NoReturn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...core.errors import NotAcquired
    from ...core.grant import Holder


class Timeout(TimeoutError):
    """The lock was not acquired within the caller's patience. Nothing is held."""

    def __init__(self, lock_file: str, holder: str | None = None) -> None:
        super().__init__()
        self._lock_file, self._named = lock_file, holder
        self._told: NotAcquired | None = None
        self._unasked: list[Callable[[Timeout], None]] = []
        self._unnamed: list[Callable[[Timeout], None]] = []  # what `str` has to ask for
        self._notes: list[str] = []

    def _look(self) -> None:
        """Find out who holds it, if that has not been done."""
        self._name()
        while self._unasked:
            self._unasked.pop(0)(self)
            if self._told is not None:
                self._notes.append(str(self._told))

    def _name(self) -> None:
        """Find out what filelock's own line says of the holder, if that has not been done."""
        while self._unnamed:
            self._unnamed.pop(0)(self)

    @property
    def lock_file(self) -> str:
        """The path of the lock, as it was given."""
        return self._lock_file

    @property
    def holder(self) -> Holder | None:
        """Who holds the lock, None when that could not be seen."""
        self._look()
        return self._told.holder if self._told is not None else None

    @property
    def __notes__(self) -> list[str]:
        """Who holds the lock, since when, whether it lives, and what to do: lifehold's text."""
        self._look()
        return self._notes

    @__notes__.setter
    def __notes__(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, notes: list[str]
    ) -> None:
        self._unasked.clear()  # the program says what stands there
        self._notes = notes

    def __str__(self) -> str:
        self._name()
        text = f"The file lock '{self._lock_file}' could not be acquired."
        if self._named is not None:
            text += f" It is held by {self._named}, which this host cannot probe."
        return text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._lock_file!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        self._look()
        return type(self), (self._lock_file,), self.__dict__.copy()


def tell_path(error: OSError, path: str) -> None:
    """Say of which lock it is told: calls that work by a descriptor know a part of it at most."""
    told = error.filename
    if type(error).__module__ == "builtins" and (told is None or isinstance(told, str)):
        if not (told or "").startswith("/"):
            error.filename = path


class SoftFileLockLifetimeWarning(FutureWarning):
    """`SoftFileLock(lifetime=...)`: a live holder may be broken by the age of its file."""


class LeaseSettingsMismatch(ValueError):
    """Two who ask for one lease do not agree on how long it lasts."""


class SoftFileLockProtocolError(OSError):
    """What lies there cannot be read in a way that is sure to exclude: nothing was acquired."""

    def __init__(self, lock_file: str, claim_name: str | None, reason: str) -> None:
        self._lock_file, self._claim_name, self._reason = lock_file, claim_name, reason
        super().__init__(str(self))

    def __str__(self) -> str:
        where = self._lock_file
        if self._claim_name is not None:
            where += f": claim {self._claim_name!r}"
        return f"Invalid strict soft-lock state at {where}: {self._reason}"

    def __reduce__(self) -> tuple[Any, ...]:
        given = self._lock_file, self._claim_name, self._reason
        return type(self), given, self.__dict__.copy()

    @property
    def lock_file(self) -> str:
        """The path of the lock, as it was given."""
        return self._lock_file

    @property
    def claim_name(self) -> str | None:
        """The claim that is wrong; None when it is the lock as a whole."""
        return self._claim_name

    @property
    def reason(self) -> str:
        """What is wrong with it."""
        return self._reason


# ------------------------------------------------------------------------------------------------
# What is raised when one call of a lock has met several errors.
#
# Rule: none is swallowed. By the policy "chain" the last one is raised, and those before are its
# context; by "group" all of them are raised together. Texts are filelock's, for who looks for them.


BODY = "lock body and release both failed"
RELEASE = "lock release cancellation and backend release both failed"
BODY_AND_RELEASE = "context body, release cancellation, and backend release failed"
ACQUIRE = "lock acquisition cleanup failed"
CANCELLED = "lock acquisition cancellation and backend attempt both failed"
UNDONE = "lock acquisition backend and rollback both failed"
UNNOTED = "descriptor registration cleanup failed"


def grouped(text: str, *errors: BaseException) -> BaseException:
    """All of them. What one of them has been told of another is not told twice."""
    for error in errors:
        before = error.__context__
        if before is not None and (before in errors or same(before, error)):
            error.__context__ = None
    made = BaseExceptionGroup(text, errors)
    made.__dict__["of_a_lock"] = True  # not one that a body has made
    return made


def same(one: BaseException, other: BaseException) -> bool:
    """Whether two groups are of the same errors."""
    if not isinstance(one, BaseExceptionGroup) or not isinstance(other, BaseExceptionGroup):
        return False
    return one.message == other.message and one.exceptions == other.exceptions


def chained(first: BaseException, *later: BaseException) -> BaseException:
    """The last one, with the one before as its context, and so on; what it had as such goes on."""
    for failed in later:
        before = failed.__context__
        if failed is not first and before is not first:
            last, seen = first, {id(first)}
            while last.__context__ is not None and last.__context__ is not before:
                if id(last.__context__) in seen:
                    break  # somebody has made a ring of them
                last = last.__context__
                seen.add(id(last))
            if last is not failed and before is not None:
                last.__context__ = before
            failed.__context__ = first
        first = failed
    return first


def raised(error: BaseException) -> NoReturn:
    """Raise it with the context that it has: `raise` would give it the one of who calls."""
    context, cause, hidden = error.__context__, error.__cause__, error.__suppress_context__
    try:
        raise error
    finally:
        error.__context__, error.__cause__ = context, cause
        error.__suppress_context__ = hidden or isinstance(error, BaseExceptionGroup)


def by_policy(lock: Any, text: str, *errors: BaseException) -> NoReturn:
    """Raise what the lock's policy makes of them."""
    raised(grouped(text, *errors) if lock.context_error_policy == "group" else chained(*errors))


def both_failed(lock: Any, text: str, error: BaseException | None, failed: BaseException) -> None:
    """Raise what the lock's policy makes of two errors, the first of which there may not be."""
    if error is None:
        raise failed
    parts = [failed]
    ours = isinstance(failed, BaseExceptionGroup) and failed.__dict__.get("of_a_lock")
    if ours and failed.message == RELEASE:  # type: ignore[attr-defined]
        parts, text = list(failed.exceptions), BODY_AND_RELEASE  # type: ignore[attr-defined]
    if lock.context_error_policy == "group":
        raised(grouped(text, error, *parts))
    raised(chained(error, failed))


class AcquireErrors:
    """What an acquire of a subclass's lock has met, in the order of its steps."""

    __slots__ = ("cancelled", "failed", "stuck", "unnoted")

    def __init__(self) -> None:
        self.cancelled: BaseException | None = None  # its caller
        self.failed: BaseException | None = None  # the subclass's step
        self.unnoted: BaseException | None = None  # its descriptor was not noted for forks
        self.stuck: BaseException | None = None  # the lock was not let go of again

    @property
    def errors(self) -> list[BaseException]:
        """Those there are."""
        found = [self.cancelled, self.failed, self.unnoted, self.stuck]
        return [error for error in found if error is not None]

    def tell(self, lock: Any = None) -> None:
        """Raise them, if there are any. `lock`: whose policy says how; none for blocking locks."""
        errors = self.errors
        if not errors:
            return
        if len(errors) == 1:
            raise errors[0]
        if self.cancelled is not None:
            by_policy(lock, CANCELLED, *errors)
        if self.failed is None:
            raised(grouped(UNNOTED, *errors))
        if self.unnoted is None and lock is not None:
            by_policy(lock, UNDONE, *errors)
        raised(grouped(ACQUIRE, *errors))
