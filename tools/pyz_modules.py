"""Inside of lifehold.pyz: where its modules come from (packed by tools/pyz.py).

`zipimport` reads the whole directory of an archive, in Python, at each start, and opens the archive
anew for each module. So the modules stand in one entry, compiled for one Python, each behind its
name, and an index tells where in the file. What is wanted is read there. Any other version of
Python, or an archive that was packed anew, compiles the sources, which are an entry too.

The file stays open: a run may last for days, and another edition may have come into its place when
it wants one module more.
"""

import marshal
import os
import sys
from _frozen_importlib_external import MAGIC_NUMBER

LOADER, PLACE = __loader__, __file__.rpartition("/")[0]
ModuleSpec = type(__spec__)
MADE_FOR, AT = "", (0, 0)  # set by tools/pyz.py: for which Python, and where the index is
INDEX, SOURCES = "index", "sources"


def opened():
    """The descriptor of the archive: none of the first three, which may be closed just now."""
    number, low = os.open(PLACE, os.O_RDONLY | os.O_CLOEXEC), []
    while number < 3:
        low.append(number)
        number = os.dup(number)
    for each in low:
        os.close(each)
    return number


def stretch(name, at, size):
    """What is in the file there, behind `name`; None for anything else."""
    global archive
    head = name.encode() + b"\0"
    for _ in range(2):
        try:
            found = os.pread(archive, size, at) if archive >= 0 else b""
        except OSError:
            found = b""
        if found.startswith(head):
            return marshal.loads(found[len(head) :])  # noqa: S302 - of the file that is running
        archive = opened()  # a program that closes what it does not know
    return None


def rows():
    """Each module by name: where its file would stand, and where its code is or its text."""
    ours = MAGIC_NUMBER.hex() == MADE_FOR and hasattr(os, "pread")
    found = stretch(INDEX, *AT) if ours else None
    return found or marshal.loads(LOADER.get_data(SOURCES))  # noqa: S302


class Modules:
    """Finds and loads them."""

    rows = sources = None

    @classmethod
    def find_spec(cls, name, _path=None, _target=None):
        row = cls.rows.get(name)
        if row is None:
            return None
        spec = ModuleSpec(name, cls, origin=f"{PLACE}/{row[0]}")
        spec.has_location = True
        if row[0].endswith("/__init__.py"):
            spec.submodule_search_locations = [spec.origin[: -len("/__init__.py")]]
        return spec

    @staticmethod
    def create_module(_spec):
        return None  # an ordinary one

    @classmethod
    def exec_module(cls, module):
        exec(cls.get_code(module.__name__), module.__dict__)  # noqa: S102

    @classmethod
    def get_code(cls, name):
        file, where = cls.rows[name]
        code = where if isinstance(where, str) else stretch(name, *where)
        if code is None:
            raise ImportError(f"{PLACE} is another file by now", name=name, path=PLACE)
        return compile(code, file, "exec", dont_inherit=True) if isinstance(code, str) else code

    @classmethod
    def get_source(cls, name):  # for a traceback
        cls.sources = cls.sources or marshal.loads(LOADER.get_data(SOURCES))  # noqa: S302
        return cls.sources[name][1]


archive = -1  # opened when it is first read
Modules.rows = rows()
sys.meta_path.insert(0, Modules)
