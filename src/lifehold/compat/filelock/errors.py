"""What goes wrong, under filelock's names.

`Timeout` adds who holds the lock: `holder`, and lifehold's whole text as the exception's notes,
which a traceback prints. Its `str` is filelock's one line, because programs match that.
Rule: after a wait the holder is looked for at once; after a single try, when somebody asks.
Programs that try again and again do not pay for it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
