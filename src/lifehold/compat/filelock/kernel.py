"""What the native lock of this face asks of our kernel lock, in filelock's terms.

Rule: below here "not now" is a value and errors are lifehold's; above they are Timeout and OSError.
What lifehold has to say goes along: in `Timeout.holder` and its text, as a note of the OSError.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from ...core.acquire import Ask, acquire
from ...core.errors import (
    CorruptRecord,
    InvalidArgument,
    LeaseLost,
    NotHeld,
    SystemRefused,
    WouldBlock,
)
from ...core.errors import Timeout as NotInTime
from ...core.grant import Grant, Held
from ...face import refusal
from ...registry import maker
from ...runtime import clock, telling
from ...runtime.blocking import BLOCKING
from .calls import TABLE
from .errors import Timeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from .waits import Want

Kernel = maker("kernel")


def mechanism(path: str, mode: int | None, record: bool, runtime: Any = BLOCKING) -> Any:
    """Our kernel lock of an absolute path."""
    return Kernel(path, runtime, mode=mode, record=record, table=TABLE)


def attempt(kernel: Any) -> Grant | Held:
    """One try. Raises OSError."""
    try:
        return kernel.attempt()  # type: ignore[no-any-return]
    except SystemRefused as error:
        raise plain(error) from error
    except InvalidArgument as error:  # a folder, a symlink, a FIFO stands there
        raise not_a_file(kernel.path, error) from error
    except CorruptRecord:  # a lock file is a lock file, whatever was written into it
        bare = mechanism(kernel.path, kernel.mode, False)
        return bare.attempt()  # type: ignore[no-any-return]


async def waited(
    kernel: Any, runtime: Any, name: str, answer: Held, want: Want, refuse: Callable[..., Timeout]
) -> Grant:
    """The lock, once it is granted. Raises what `refuse` makes, OSError."""
    begun = clock.now()
    ask = Ask(name, want.deadline, None, telling.waiting)
    source: Any = kernel
    if want.cancel is not None:
        source = Asking(kernel, want.pause, want.cancel)
    try:
        found = await acquire(source, runtime, ask, answer)
    except SystemRefused as error:
        raise plain(error) from error
    if isinstance(found, Grant):
        return found
    raise refuse(clock.now() - begun)


def refused(
    kernel: Any, name: str, waited: float | None = None, following: list[str] | None = None
) -> Timeout:
    """The Timeout that says who holds the lock."""
    error = Timeout(name)
    kind = WouldBlock if waited is None else NotInTime
    error._told = refusal(kind, name, kernel, "", waited, kernel.path, following)
    return error


def plain(error: SystemRefused) -> OSError:
    """The system's own error, of the class that its number has, with our words as a note."""
    number = error.errno or 0
    made = OSError(number, os.strerror(number), error.filename)
    made.add_note(str(error))
    return made


def drop(kernel: Any, grant: Grant, lease: Any) -> str:
    """Let go; why the lock was lost before, empty when it was not. Raises OSError."""
    try:
        if lease is None:
            lost = kernel.drop(grant)
            return "" if lost is None else lost.reason
        lease.release()
    except SystemRefused as error:
        raise plain(error) from error
    except (LeaseLost, NotHeld) as error:
        return str(error)
    return ""


def not_a_file(path: str, told: InvalidArgument) -> OSError:
    """What open(2) says of something that is no regular file."""
    try:
        mode = os.lstat(path).st_mode
    except NotADirectoryError:  # what mkdir(2) says of the part that is a file
        path, mode = os.path.dirname(path), 0
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    if stat.S_ISLNK(mode):
        number = errno.ELOOP
    number = number if mode else errno.EEXIST
    made = OSError(number, os.strerror(number), path)
    made.add_note(str(told))
    return made


class Asking:
    """A kernel lock whose wait asks the caller now and then whether to go on.

    The place in the queue is kept between two questions.
    """

    def __init__(self, kernel: Any, pause: float, cancel: Callable[[], bool]) -> None:
        self._kernel, self._pause, self._cancel = kernel, max(pause, 0.001), cancel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    async def wait(self, ask: Ask, until: float) -> Any:
        """As the lock's own, until the caller says that he has enough: that is his deadline."""
        while True:
            if self._cancel():
                ask.deadline = clock.now()
                return Held("cancelled")
            found = await self._kernel.wait(ask, min(until, clock.now() + self._pause))
            if not isinstance(found, Held) or clock.now() >= until:
                return found
