"""What is raised when one call of a lock has met several errors.

Rule: none is swallowed. By the policy "chain" the last one is raised, and those before are its
context; by "group" all of them are raised together. Texts are filelock's, for who looks for them.
"""

from __future__ import annotations

from typing import Any, NoReturn

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


class Outcome:
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
