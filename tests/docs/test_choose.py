"""The five questions of docs/explanation/choose.md end in lines that are true."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import lifehold
import lifehold.fence
from lifehold.cli import options
from lifehold.recipes import once_build

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "choose.md").read_text()
TREE = PAGE.partition("## Who may break what")[0]
CALLS = [
    code for code in re.findall(r"`([^`]+)`", TREE) if re.match(r"(?!pg_)[A-Za-z_]+\(.*\)$", code)
]
LINES = [code for code in re.findall(r"`([^`]+)`", TREE) if code.startswith("lifehold ")]


def callee(name: str):
    for room in (lifehold, once_build, lifehold.fence):
        if hasattr(room, name):
            return getattr(room, name)
    return None


@pytest.mark.parametrize("code", CALLS)
def test_each_call_of_the_tree_has_a_name_and_arguments_that_exist(code):
    call = ast.parse(code, mode="eval").body
    while isinstance(call.func, ast.Attribute):  # connect(url).lock(...)
        call = call.func.value
    there = callee(call.func.id)
    assert there is not None, call.func.id
    signature = inspect.signature(there)
    try:
        signature.bind(*call.args, **{one.arg: one.value for one in call.keywords})
    except TypeError as error:
        raise AssertionError(f"{code}: {error}") from None


@pytest.mark.parametrize("line", LINES)
def test_each_line_of_the_command_has_options_that_exist(line):
    _, name, *words = line.split()
    command = options.COMMANDS[name]
    flags = {flag for option in command.options for flag in option.flags}
    assert {word for word in words if word.startswith("-") and word != "--"} <= flags


def test_there_are_five_questions_and_each_kind_that_is_named_is_one(tmp_path):
    assert re.findall(r"^## (\d)\.", TREE, re.MULTILINE) == list("12345")
    named = set(re.findall(r'kind="(\w+)"', TREE))
    assert {"session", "generation"} <= named
    for kind in named - {"session"}:  # which stores alone have
        lifehold.Lock(tmp_path / "x.lock", kind=kind)
    assert len(CALLS) > 10
