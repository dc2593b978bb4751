"""One reader/writer lock object for a path, unless it is told otherwise."""

from __future__ import annotations

import os
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ...runtime import fork
from .construction import canonical, turn_of
from .sides import shown

if TYPE_CHECKING:
    from collections.abc import Callable


class SidesMeta(type):
    """One object for a path, unless it is told otherwise."""

    _instances: WeakValueDictionary[object, Any]

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, space)
        cls._instances = WeakValueDictionary()
        cls._making: dict[Any, int] = {}

    def _one(
        cls, lock_file: str | os.PathLike[str], timeout: Any, blocking: Any, make: Callable[[], Any]
    ) -> Any:
        key = fork.here(), canonical(os.fspath(lock_file))
        with turn_of(cls):
            found = cls._instances.get(key)
            if found is None:
                if key in cls._making:
                    raise RuntimeError(
                        f"Singleton lock construction is already active for {lock_file!s}"
                    )
                cls._making[key] = get_ident()
                try:
                    found = make()
                finally:
                    cls._making.pop(key, None)
                if key[0] != fork.here():
                    raise RuntimeError(f"{cls.__name__} construction cannot continue after fork")
                cls._instances[key] = found
        same = shown(found.timeout) == shown(timeout) and found.blocking == blocking
        if not same:
            raise ValueError(
                f"Singleton lock created with timeout={found.timeout}, blocking={found.blocking}, "
                f"cannot be changed to timeout={timeout}, blocking={blocking}"
            )
        return found
