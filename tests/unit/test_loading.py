"""Records are read as `json` would read them, without its imports."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys

import pytest

from lifehold.local import record

TEXTS = [
    b"{}", b' {"a": 1} \r\n', b'{"a":"\\u00e4\xc3\xa4","b":[1.5,-0,1e400,null,true]}', b"", b" ",
    b"{", b'{"a"', b"{} {}", b"nul", b'"\xff"', b'"a\nb"', b"\xef\xbb\xbf{}", b"12", b"[" * 20000,
    b'{"a":1,"a":2}', b"-Infinity", b"9" * 5000,
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_json(monkeypatch):
    monkeypatch.delitem(sys.modules, "json")


def answer(read, text):
    try:
        return repr(read(text))
    except (ValueError, RecursionError) as error:
        return ValueError if isinstance(error, ValueError) else RecursionError


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_json_answers_is_answered(text):
    assert answer(record.loads, text) == answer(json.loads, text)


def test_damaged_records_are_answered_alike():
    dice, good = random.Random(3), json.dumps({"a": [1, {"b": "x\u20ac"}], "c": math.pi}).encode()
    for _ in range(2000):
        text = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            text[dice.randrange(len(text))] = dice.choice(b'{}[]",:0 \\u\xff')
        sys.modules.pop("json", None)
        ours = answer(record.loads, bytes(text))
        assert ours == answer(json.loads, bytes(text))


def test_half_a_record_is_an_error_where_json_was_never_imported():
    program = 'from lifehold.local.record import loads\ntry: loads(b\'{"lifehold":1,"ki\')\n'
    program += "except ValueError as error: print(type(error).__name__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=60,
        check=True, env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.stdout == "JSONDecodeError\n"


FIRST_NOTICE = """
import sys
from lifehold import Lock, Timeout
from lifehold.core import acquire
acquire.FIRST_NOTICE = 0.05
try:
    Lock(sys.argv[1]).acquire(0.2)
except Timeout as error:
    str(error)
print(*{"json", "re", "logging", "enum"} & {*sys.modules} - before)
"""


def test_a_first_notice_imports_neither_json_nor_logging(tmp_path):
    """They are most of what a waiter of a minute would cost."""
    from lifehold import Lock

    program = "import sys; before = {*sys.modules}\n" + FIRST_NOTICE
    with Lock(tmp_path / "x"):
        done = subprocess.run(
            [sys.executable, "-S", "-c", program, str(tmp_path / "x")], capture_output=True,
            text=True, timeout=150, check=True, env={"PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
    assert "held by pid" in done.stderr
    assert done.stdout.split() == []
