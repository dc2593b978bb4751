"""What can be asked of a lock of this face, and set: of its options and of its hold."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ...runtime import fork
from . import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from .options import CloseErrorPolicy, ContextErrorPolicy


class Settings:
    """The properties of every exclusive lock."""

    _context: Any
    _generation: int
    _is_thread_local: bool
    _is_singleton: bool
    _context_error_policy: str
    _close_error_policy: str
    _fallback_to_soft: bool
    _preserve_lock_file: bool
    _on_acquired: Callable[[int], None] | None

    @property
    def lock_file(self) -> str:
        """The path, as it was given."""
        return self._context.lock_file  # type: ignore[no-any-return]

    @property
    def is_locked(self) -> bool:
        """Whether this thread, or this object with `thread_local=False`, holds the lock."""
        return self._context.hold.fd is not None and self._generation == fork.here()

    @property
    def lock_counter(self) -> int:
        """How often it is held."""
        return self._context.hold.counter if self._generation == fork.here() else 0

    def is_thread_local(self) -> bool:
        """Whether each thread has a hold of its own."""
        return self._is_thread_local

    @property
    def is_singleton(self) -> bool:
        """Whether there is one object for a path."""
        return self._is_singleton

    @property
    def timeout(self) -> float:
        """Seconds of patience; below zero without a limit."""
        return self._context.timeout  # type: ignore[no-any-return]

    @timeout.setter
    def timeout(self, value: float | str) -> None:
        self._context.timeout = options.from_text("timeout", value)

    @property
    def blocking(self) -> bool:
        """Whether `acquire()` waits."""
        return self._context.blocking  # type: ignore[no-any-return]

    @blocking.setter
    def blocking(self, value: bool) -> None:
        self._context.blocking = options.boolean("blocking", value)

    @property
    def poll_interval(self) -> float:
        """Seconds between two tries."""
        return self._context.poll_interval  # type: ignore[no-any-return]

    @poll_interval.setter
    def poll_interval(self, value: float) -> None:
        self._context.poll_interval = options.poll(value)

    @property
    def lifetime(self) -> float | None:
        """Seconds after which a soft lock's file may be broken, None for never."""
        return self._context.lifetime  # type: ignore[no-any-return]

    @lifetime.setter
    def lifetime(self, value: float | None) -> None:
        found = options.lifetime(value)
        if found is not None:
            self._about_lifetime(3)
        self._context.lifetime = found if self._lifetime_supported else None

    _lifetime_supported = False  # whether a lifetime means anything to this kind
    _ageless = "a native OS lock cannot be broken safely by file age"

    @classmethod
    def _about_lifetime(cls, level: int) -> None:
        """What there is to know for who sets a lifetime; `level`: of the frame that does."""
        if cls._lifetime_supported:
            return
        text = (
            f"lifetime is ignored for {cls.__name__}: {cls._ageless}; "
            "only SoftFileLock supports lifetime-based expiry"
        )
        warnings.warn(text, UserWarning, stacklevel=level)

    @property
    def mode(self) -> int:
        """The permission bits of a new lock file; 0o644 when none were asked for."""
        mode: int = self._context.mode
        return 0o644 if mode == options.UNSET_FILE_MODE else mode

    @property
    def has_explicit_mode(self) -> bool:
        """Whether `mode` was asked for."""
        return self._context.mode != options.UNSET_FILE_MODE  # type: ignore[no-any-return]

    def _open_mode(self) -> int:
        return self.mode if self.has_explicit_mode else 0o666

    @property
    def context_error_policy(self) -> ContextErrorPolicy:
        """What becomes of two errors, of a block and of its release."""
        return self._context_error_policy  # type: ignore[return-value]

    @property
    def close_error_policy(self) -> CloseErrorPolicy:
        """What becomes of an error of close(2) after the lock was let go."""
        return self._close_error_policy  # type: ignore[return-value]

    @property
    def fallback_to_soft(self) -> bool:
        """Whether a file system without flock(2) gets a soft lock."""
        return self._fallback_to_soft

    @property
    def preserve_lock_file(self) -> bool:
        """Whether the lock file stays on Windows too."""
        return self._preserve_lock_file

    @property
    def on_acquired(self) -> Callable[[int], None] | None:
        """Called with the descriptor after each acquisition."""
        return self._on_acquired

    def _differing(self, extra: dict[str, Any]) -> list[tuple[str, Any, Any]]:
        """A kind's own options that a singleton was made with in another way: name, had, asked."""
        return []
