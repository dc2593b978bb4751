"""A token by which one thread ends the wait of another.

Async code uses its own cancellation instead.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Cancel:
    """Pass it to `acquire(cancel=...)`.

    `cancel()` from any thread or signal handler ends that wait.

    Once cancelled it stays so. A wait that has already been granted is not undone.
    """

    __slots__ = ("_callbacks", "_cancelled")

    def __init__(self) -> None:
        self._cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """End every wait that uses this token."""
        self._cancelled = True
        for callback in self._callbacks.copy():
            callback()

    def attach(self, callback: Callable[[], None]) -> None:
        """Call `callback` on cancel, at once if that has happened.

        It must be quick and safe to repeat.
        """
        self._callbacks.append(callback)
        if self._cancelled:  # looked at after the append, so a cancel in between is not missed
            callback()

    def detach(self, callback: Callable[[], None]) -> None:
        """Forget `callback`."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)
