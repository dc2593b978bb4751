"""The command as one file: `python tools/pyz.py TARGET`, which `make pyz` calls.

The modules stand in one entry, compiled, and stored as they are: what a start needs is read there,
by an index. Their sources, which only another version of Python and a traceback read, are deflated.
tools/pyz_modules.py, which goes along, loads them.
"""

from __future__ import annotations

import ast
import marshal
import sys
import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path

TOOLS = Path(__file__).parent
SOURCE = TOOLS.parent / "src"
MODULES = TOOLS / "pyz_modules.py"
MAIN = """\
import _signal as signal

if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # as lifehold_command, earlier
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import pyz_modules
from lifehold_command import main

raise SystemExit(main())
"""
# For who has the file on the path of modules, as the demo's other processes.
PACKAGE = 'from pyz_modules import Modules\n\nexec(Modules.get_code("lifehold"))\n'
BEGINS = b"#!/usr/bin/env python3\n"
UNSET = 'MADE_FOR, AT = "", (0, 0)'
HEADER = 30  # bytes of a ZIP file before the name of an entry, which its content follows
READ_BY_ALL = 2  # a version of marshal that each Python reads


def sources() -> dict[str, tuple[str, str]]:
    """Each module by name: where its file would stand, and its text."""
    found = {}
    for file in sorted([SOURCE / "lifehold_command.py", *SOURCE.glob("lifehold/**/*.py")]):
        path = file.relative_to(SOURCE)
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        found[name] = (str(path), file.read_text(encoding="utf-8"))
    return found


def undocumented(text: str) -> ast.Module:
    """A module without its docstrings, which a start of the command would read for nothing."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                first = node.body[0]
                node.body[:1] = [] if node.body[1:] else [ast.copy_location(ast.Pass(), first)]
    return tree


def compiled(texts: dict[str, tuple[str, str]], begin: int) -> tuple[bytes, tuple[int, int]]:
    """An entry whose first byte is at `begin` in the file: codes, an index; where that stands."""
    content, index = bytearray(), {}

    def put(name: str, item: object) -> tuple[int, int]:
        at = len(content)
        content.extend(name.encode() + b"\0" + marshal.dumps(item))
        return begin + at, len(content) - at

    for name, (path, text) in texts.items():
        code = compile(undocumented(text), path, "exec", dont_inherit=True)
        index[name] = (path, put(name, code))
    at = put("index", index)
    return bytes(content), at


def pyc(text: str, name: str) -> bytes:
    """What zipimport takes for `name`.pyc, whatever is beside it: a hash that is not checked."""
    code = compile(text, f"{name}.py", "exec", dont_inherit=True)
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def pack(target: Path) -> None:
    """Write the file, which every user may run; compiled for the Python that runs this."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        file.write(BEGINS)
        with zipfile.ZipFile(file, "w") as archive:
            modules = sources()
            content, at = compiled(modules, file.tell() + HEADER + len("modules"))
            archive.writestr("modules", content)
            texts = {
                "__main__": MAIN,
                "lifehold/__init__": PACKAGE,
                "pyz_modules": MODULES.read_text(encoding="utf-8").replace(
                    UNSET, f'MADE_FOR, AT = "{MAGIC_NUMBER.hex()}", {at}'
                ),
            }
            for name, text in texts.items():
                archive.writestr(f"{name}.py", text)
                archive.writestr(f"{name}.pyc", pyc(text, name))
            rows = marshal.dumps(modules, READ_BY_ALL)
            archive.writestr("sources", rows, zipfile.ZIP_DEFLATED)
    target.chmod(0o755)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
