"""The command as one file: `python tools/pyz.py TARGET`, which `make pyz` calls.

The modules stand in one entry, compiled, and stored as it is, since to inflate it took a fifth of
each start; their sources, which only another version of Python and a traceback read, are deflated.
tools/pyz_modules.py, which goes along, loads them.
"""

from __future__ import annotations

import marshal
import sys
import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path

TOOLS = Path(__file__).parent
SOURCE = TOOLS.parent / "src"
MODULES = TOOLS / "pyz_modules.py"
MAIN = "import sys\n\nimport pyz_modules\nfrom lifehold_command import main\n\nsys.exit(main())\n"
# For who has the file on the path of modules, as the demo's other processes.
PACKAGE = 'from pyz_modules import Modules\n\nexec(Modules.get_code("lifehold"))\n'
BEGINS = b"#!/usr/bin/env python3\n"
READ_BY_ALL = 2  # a version of marshal that each Python reads


def rows(*, compiled: bool) -> bytes:
    """Each module by name: where its file would stand, and its code or its text."""
    found = {}
    for file in sorted([SOURCE / "lifehold_command.py", *SOURCE.glob("lifehold/**/*.py")]):
        path = file.relative_to(SOURCE)
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        text = file.read_text(encoding="utf-8")
        code = compile(text, str(path), "exec", dont_inherit=True) if compiled else None
        found[name] = (str(path), marshal.dumps(code) if code else text)
    return marshal.dumps(found, READ_BY_ALL)


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
            texts = {
                "__main__": MAIN,
                "lifehold/__init__": PACKAGE,
                "pyz_modules": MODULES.read_text(encoding="utf-8"),
            }
            for name, text in texts.items():
                archive.writestr(f"{name}.py", text)
                archive.writestr(f"{name}.pyc", pyc(text, name))
            archive.writestr(f"modules-{MAGIC_NUMBER.hex()}", rows(compiled=True))
            archive.writestr("sources", rows(compiled=False), zipfile.ZIP_DEFLATED)
    target.chmod(0o755)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
