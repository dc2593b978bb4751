"""Drop-in faces: the names and the files of other lock libraries, over our mechanisms."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["install"]


def install(name: str) -> ModuleType:
    """Let `import filelock` mean lifehold's face, for programs whose source one cannot change.

    `name`: "filelock". Call it before anything imports the real one; twice is once. The answer is
    the module that stands in. Raises AlreadyImported when the real one is there already: some of
    the program would go on with it, in another way than the rest; InvalidArgument for a name that
    there is no face for.
    """
    from .installing import install as installed

    return installed(name)
