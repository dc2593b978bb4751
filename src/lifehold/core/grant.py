"""What a mechanism may answer. "Not now" is a value, not an exception.

`Grant | Held | Lost | Unknown`.
"""

from __future__ import annotations

from .value import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any, NoReturn, SupportsIndex

    from .owner import Owner


# A process that lives and does nothing: by a signal, by a debugger, in the kernel (state D).
STOPPED, TRACED, STUCK = "stopped", "traced", "stuck"


@value
class Holder:
    """Who has a lock, since when, and whether it lives. Any part may be unknown (None).

    `since`: UTC seconds; `alive`: "alive", "dead" or "unknown" with its `evidence` in words;
    `lock`: what is held, in words; `token`, `nonce`: of the grant; `pid_here`: the number by which
    its process is called from here, be its own PID namespace another; 0 when it has another and
    cannot be seen from here; `began`: where `since` is not known, UTC seconds of its
    process's own begin; `halted`: STOPPED, TRACED or STUCK while its process lives and cannot run.
    """

    owner: Owner | None = None
    since: float | None = None
    alive: str = "unknown"
    evidence: str = ""
    token: int | None = None
    nonce: str | None = None
    lock: str = ""
    pid_here: int | None = None
    began: float | None = None
    halted: str = ""


def is_grant_of(found: Holder, whom: Holder | None) -> bool:
    """Whether what was found is the grant that `whom` had; None: any. One may have no nonce."""
    if whom is None:
        return True
    pids = [each.owner and each.owner.pid for each in (found, whom)]
    return found.nonce == whom.nonce and pids[0] == pids[1]


@value
class Grant:
    """The lock is ours.

    `mark` is random, and with the token or the time it makes the `nonce`, the name of this very
    grant (L5); `token` the fencing token, None with
    `token_reason` when this lock can carry none; `acquired_at_ns` UTC nanoseconds; `deadline` the
    instant of the runtime's clock at which we must stop, None when the grant does not end by
    itself; `key` says what is locked, equal for two names of one thing; `handle` belongs to the
    mechanism.
    """

    name: str
    mark: str
    token: int | None
    token_reason: str | None
    acquired_at_ns: int
    key: Hashable
    handle: Any
    deadline: float | None = None

    @property
    def nonce(self) -> str:
        """Made when it is asked for: formatting it costs as much as a system call."""
        return f"{self.mark}-{self.acquired_at_ns if self.token is None else self.token}"


@value
class Held:
    """Someone else has it. `reason` tells what stands in the way when it is not simply a holder.

    `key`: as in Grant; `hint`: where this very waiter is to look for a change, for the mechanism,
    which may have several waiters; `cause`: why it could not be asked at all just now, and then
    `sent_at`: the instant of the runtime's clock from which the wait counts, and `doubted`: the
    nonce of which nobody knows what it has (L6).
    """

    reason: str = ""
    key: Hashable = None
    hint: Any = None
    cause: BaseException | None = None
    sent_at: float = 0.0
    doubted: str = ""


@value
class Lost:
    """We hold it no more. `gone`: not by our own doing, so others may be in."""

    reason: str
    gone: bool = False


@value
class Unknown:
    """No answer came, so nobody can say whether we hold it (L6). `cause`: what went wrong."""

    nonce: str
    cause: BaseException


Answer = Grant | Held | Unknown


class Bound:
    """A base class of what belongs to one process, and is there once.

    L5  A copy of a lease would end the grant of the first as soon as it is dropped. `_refusal`:
    what it is, and what to do instead, in words.
    """

    __slots__ = ()
    _refusal = (
        "a lease cannot be copied or pickled: it is one grant of this process; hand on the lock, "
        "and acquire it there, or hand on the token"
    )

    def __reduce_ex__(self, _: SupportsIndex) -> NoReturn:  # of copy, deepcopy and pickle
        raise TypeError(self._refusal)


class Single:
    """A base class of what ends a thing of the system when it is collected.

    L5  A copy, whole or half made, would end it under the first as soon as it is dropped.
    """

    __slots__ = ()

    def __copy__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: it cannot be copied, what it has is there once")

    def __deepcopy__(self, _: object) -> NoReturn:
        self.__copy__()
