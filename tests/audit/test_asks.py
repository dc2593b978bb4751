"""LH115: who only asks whether a lock is held is no holder; who goes on by the answer is."""

from __future__ import annotations

import ast

import pytest

from lifehold.audit import fix, scan
from lifehold.audit.catalogue import RULES
from lifehold.audit.forms import judged
from lifehold.audit.model import Module

UNNAMED = """\
import fcntl, sys
def NAME():
    try:
        fcntl.flock(open("e.lock", "a"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
"""
NAMED = """\
import fcntl, sys
def NAME():
    file = open("e.lock", "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
"""


def codes(text: str) -> set[str]:
    judge = judged(Module("example.py", text, ast.parse(text)))
    return {hit[0] for hit in scan.hits(judge, text)}


@pytest.mark.parametrize("text", [UNNAMED, NAMED])
@pytest.mark.parametrize("name", ["busy", "is_locked", "probe"])
@pytest.mark.parametrize("use", ["", "print(NAME())", "if NAME():\n    print('busy')"])
def test_who_only_asks_holds_nothing(text, name, use):
    text = (text + use).replace("NAME", name)
    assert "LH115" not in codes(text)
    made = fix.cured("app.py", text.encode(), frozenset(RULES), unsafe=True)
    assert made.after.decode() == text


USED = {
    "left at True": "if NAME():\n    sys.exit('running')\nwork()",
    "kept, and left at True": "def main():\n    busy = NAME()\n    if busy: return\n    work()",
    "works at False": "if not NAME():\n    work()",
}


@pytest.mark.parametrize("name", USED)
def test_who_goes_on_to_work_meant_to_hold_it(name):
    text = (UNNAMED + USED[name]).replace("NAME", "already_running")
    assert "LH115" in codes(text)


TAKES = """\
import fcntl
def mine():
    try:
        fcntl.flock(open("e.lock", "a"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
"""
OTHERS = {
    "a name that takes": UNNAMED.replace("NAME", "acquire_lock"),
    "one that waits": UNNAMED.replace("NAME", "busy").replace(" | fcntl.LOCK_NB", ""),
    "True is had": TAKES,
}


@pytest.mark.parametrize("name", OTHERS)
def test_who_takes_it_is_told_as_before(name):
    assert "LH115" in codes(OTHERS[name])
