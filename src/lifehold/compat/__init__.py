"""Drop-in faces: the names and the files of other lock libraries, over our mechanisms.

And how a face stands in for another package, whole or not at all. Rule: what is installed is a
module of its own without a path, whose names are the face's public ones: no import can load a file
of ours a second time under another name, as that would make two tables of open locks. A submodule
is there when programs are known to import it, and has the face's public names only.
"""

from __future__ import annotations

import sys
from types import ModuleType

from ..core.errors import InvalidArgument, LifeholdError
from ..runtime import fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["install"]

FACES = {"filelock": "lifehold.compat.filelock"}
PARTS = {
    "filelock": (
        "_api",
        "_async",
        "_async_read_write",
        "_descriptor",
        "_error",
        "_lease",
        "_marker",
        "_read_write",
        "_soft",
        "_soft_rw",
        "_strict",
        "_unix",
        "_windows",
        "asyncio",
        "version",
    )
}


class AlreadyImported(LifeholdError, ImportError):
    """The package that was to be replaced is in use already. Nothing was changed."""


class AliasModule(ModuleType):
    """A module whose names are another's."""

    def __init__(self, name: str, face: ModuleType, public: frozenset[str]) -> None:
        super().__init__(name, face.__doc__)
        self.__dict__["_face"], self.__dict__["_public"] = face, public
        self.__spec__ = fork.lazily("importlib.machinery").ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__["_public"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.__dict__["_face"], name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__["_public"], *self.__dict__})


def install(name: str) -> ModuleType:
    """Let `import filelock` mean lifehold's face, for programs whose source one cannot change.

    `name`: "filelock". Call it before anything imports the real one; twice is once. The answer is
    the module that stands in. Raises AlreadyImported when the real one is there already: some of
    the program would go on with it, in another way than the rest; InvalidArgument for a name that
    there is no face for.
    """
    if name not in FACES:
        known = ", ".join(sorted(FACES))
        raise InvalidArgument(f"there is no face to install for {name!r}, only for {known}")
    fork.here()
    with fork.gate:
        there = sys.modules.get(name)
        if isinstance(there, AliasModule):
            return there
        imported = sorted(each for each in sys.modules if each.partition(".")[0] == name)
        if imported:
            raise AlreadyImported(
                f"{name} is imported already, from {getattr(there, '__file__', None)}: what has it "
                "would go on with it. Call lifehold.compat.install() before anything imports "
                f"{name}, for example in sitecustomize.py",
                name=name,
            )
        face = fork.lazily(FACES[name])
        public = frozenset(face.__all__) | {"version"}
        made = AliasModule(name, face, public)
        made.__dict__["__all__"] = list(face.__all__)
        sys.modules[name] = made
        for part in PARTS[name]:
            sys.modules[f"{name}.{part}"] = AliasModule(f"{name}.{part}", face, public)
        return made
