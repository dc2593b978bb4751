"""docs/reference/fork.md is what the code registers, in the order in which it does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT_ALL = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError:
        continue  # of another system, or of an extra that is not here
from lifehold.runtime import fork
print(json.dumps([[each.__module__, each.__name__] for each in fork._callbacks
                  if type(each).__name__ == "function"]))
"""


@pytest.fixture(scope="module")
def forgotten():
    spec = importlib.util.spec_from_file_location("forgotten", ROOT / "tools" / "forgotten.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_registers(forgotten):
    assert forgotten.PAGE.read_text() == forgotten.written(), "run: python tools/forgotten.py"


def test_each_hook_says_what_the_child_forgets(forgotten):
    silent = [f"{hook.module}:{hook.line}" for hook in forgotten.in_order() if not hook.sentence]
    assert not silent, "a comment beside `fork.in_child(...)`, or a docstring of what it calls"


def test_the_order_of_the_page_is_that_of_a_program_that_imports_all(forgotten):
    names = sorted(forgotten.modules(), key=lambda name: (name != "lifehold", name))
    names = [name for name in names if not name.endswith("__main__")]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(names)],
        capture_output=True, text=True, check=True, timeout=150,
    )  # fmt: skip
    called = [tuple(each) for each in json.loads(done.stdout)]
    told = [(hook.module, hook.call) for hook in forgotten.in_order() if hook.decorates]
    assert len(told) > 15
    assert [each for each in called if each in told] == [each for each in told if each in called]
    assert set(told) - set(called) == set()
