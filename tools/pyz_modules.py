"""Inside of lifehold.pyz: where its modules come from (packed by tools/pyz.py).

`zipimport` reads the whole directory of an archive, in Python, at each start, and opens the archive
anew for each module. So all modules stand in one entry, compiled for one Python; any other version
compiles their sources, which are an entry too.
"""

import marshal
import sys
from _frozen_importlib_external import MAGIC_NUMBER

LOADER, PLACE = __loader__, __file__.rpartition("/")[0]
ModuleSpec = type(__spec__)
COMPILED, SOURCES = f"modules-{MAGIC_NUMBER.hex()}", "sources"


def unpacked(entry):
    """What an entry of the archive holds."""
    return marshal.loads(LOADER.get_data(entry))  # noqa: S302 - of the file that is running


class Modules:
    """Finds and loads them: a row is where its file would stand, and its code."""

    try:
        rows = unpacked(COMPILED)
    except OSError:
        rows = unpacked(SOURCES)
    sources = None

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
        file, code = cls.rows[name]
        if isinstance(code, str):
            return compile(code, file, "exec", dont_inherit=True)
        return marshal.loads(code)  # noqa: S302

    @classmethod
    def get_source(cls, name):  # for a traceback
        cls.sources = cls.sources or unpacked(SOURCES)
        return cls.sources[name][1]


sys.meta_path.insert(0, Modules)
