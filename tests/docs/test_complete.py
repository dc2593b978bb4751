"""The reference leaves nothing out, and every test that a page names is there.

What the code has is read off the code; a page that misses one of them fails.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from benchmarks import scale

import lifehold
import lifehold.fence
from lifehold import AsyncLock, Backoff, Cancel, Lock, aonce, once
from lifehold.aio import AsyncLease
from lifehold.cli import exits, options, run
from lifehold.cli import once as once_report
from lifehold.core import errors, events
from lifehold.core.grant import Holder
from lifehold.core.owner import Owner
from lifehold.lock import Lease
from lifehold.ops import history
from lifehold.ops.who import LockAnswer
from lifehold.runtime.loss import LostSignal
from lifehold.testing.conformance import CAPABILITIES, Subject, cases

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# How a lease is lost is the mechanism's to say.
INTERNAL = {LostSignal: {"set"}, Cancel: set(), Backoff: {"first", "longest", "growth", "jitter"}}


def page(name: str) -> str:
    return (DOCS / name).read_text()


def named(text: str) -> set[str]:
    """The words that stand in code on a page."""
    code = re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL)
    return set(re.findall(r"[A-Za-z_][\w]*", "\n".join(code)))


def members(kind: type) -> set[str]:
    found = {name for name in dir(kind) if not name.startswith("_") and hasattr(kind, name)}
    return found - INTERNAL.get(kind, set())


def errors_of_the_tree() -> list[type[errors.LifeholdError]]:
    found = [each for each in vars(errors).values() if inspect.isclass(each)]
    return [each for each in found if issubclass(each, errors.LifeholdError)]


@pytest.mark.parametrize("kind", [Lock, Lease, AsyncLock, AsyncLease, LostSignal, Backoff, Cancel])
def test_the_page_of_the_lock_names_every_member_and_argument(kind):
    wanted = members(kind)
    if kind in (Lock, AsyncLock, Backoff):
        taken = inspect.signature(kind).parameters.values()
        wanted |= {each.name for each in taken if each.annotation != "Never"}
    assert wanted - named(page("reference/lock.md")) == set()


@pytest.mark.parametrize("call", [once, aonce])
def test_the_page_of_once_names_every_argument(call):
    wanted = set(inspect.signature(call).parameters) - {"options"}
    assert wanted - named(page("reference/once.md")) == set()


def test_the_page_of_the_lock_names_every_fact_of_a_holder():
    wanted = {*Holder.__match_args__, *Owner.__match_args__}
    assert wanted - named(page("reference/lock.md")) == set()


def test_every_public_name_has_a_place_in_the_reference():
    pages = ("lock", "shapes", "once", "store", "errors")
    text = "".join(page(f"reference/{name}.md") for name in pages)
    assert set(lifehold.__all__) - named(text) == set()


@pytest.mark.parametrize("error", errors_of_the_tree())
def test_the_page_of_errors_names_each_with_its_code_and_status(error):
    text = page("reference/errors.md")
    assert f"| `{error.__name__}` | `{error.code}` |" in text
    code = exits.code_of(error(""))
    (last,) = re.findall(rf"^\|[ —]*`{error.__name__}` \|.*\|([^|`]*)\|$", text, re.MULTILINE)
    assert last.strip() == ("" if code == exits.BUG else str(code))


def test_the_page_of_events_names_each_with_its_fields():
    text = page("reference/events.md")
    for event in events.Event.__args__:
        assert f"| `{event.__name__}` | `{', '.join(event.__match_args__)}` |" in text


@pytest.mark.parametrize("command", options.COMMANDS.values(), ids=lambda command: command.name)
def test_the_page_of_the_command_names_every_option(command):
    pages = ("reference/command.md", "reference/looking.md", "reference/once.md")
    text = "".join(map(page, pages))
    assert command.usage in text
    for option in command.options:
        for flag in option.flags:
            assert f"`{flag}" in text or f"[{flag}]" in text, flag


def test_the_page_of_exit_codes_names_every_code():
    text = page("reference/exit-codes.md")
    codes = {value for value in vars(exits).values() if isinstance(value, int)}
    assert {code for code in codes if not re.search(rf"\b{code}\b", text)} == set()


def test_the_page_of_exit_codes_names_every_command():
    text = page("reference/exit-codes.md")
    said = set(re.findall(r"`(?:lifehold )?([a-z]+)`", text))
    assert set(options.COMMANDS) - said == set()


def test_the_page_of_the_history_names_every_field_and_every_outcome():
    text = page("reference/history.md")
    schema = json.loads(page("reference/run.schema.json"))
    outcomes = schema["properties"]["outcome"]["enum"]
    wanted = {*history.HistoryEntry.__match_args__, *history.EVENTS, *outcomes}
    assert wanted - named(text) == set()
    assert {value for name, value in vars(run).items() if value in outcomes} == {*outcomes}


def test_the_page_of_once_names_every_outcome():
    schema = json.loads(page("reference/once.schema.json"))
    outcomes = schema["properties"]["outcome"]["enum"]
    assert set(outcomes) - named(page("reference/once.md")) == set()
    assert {value for value in vars(once_report).values() if value in outcomes} == {*outcomes}


def test_the_page_of_the_record_names_every_field():
    schema = json.loads(page("reference/record.schema.json"))
    assert set(schema["properties"]) - named(page("reference/record.md")) == set()


def test_the_schema_of_who_names_every_field_of_an_answer():
    schema = json.loads(page("reference/who.schema.json"))["$defs"]
    assert set(schema["lock"]["properties"]) == set(LockAnswer.__match_args__)
    assert set(schema["holder"]["properties"]) == {*Holder.__match_args__, "pids"}
    assert set(schema["owner"]["properties"]) == set(Owner.__match_args__)


def test_the_page_of_the_test_kit_names_every_field_and_capability():
    wanted = {*CAPABILITIES, *inspect.signature(Subject).parameters}
    assert wanted - named(page("reference/testing.md")) == set()


def test_every_test_and_claim_that_a_page_names_is_there():
    text = "".join(file.read_text() for file in DOCS.rglob("*.md"))
    source = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)", source))
    files = {str(f.relative_to(ROOT / "tests")) for f in (ROOT / "tests").rglob("test_*.py")}
    tests = set(re.findall(r"`(test_\w+)`", text))
    assert len(tests) > 20
    assert tests - there == set()
    assert set(re.findall(r"`(\w+/test_\w+\.py)`", text)) - files == set()
    claims = {case.claim.name for case in cases(Subject("kernel"))}
    shown = re.findall(r"claims? ((?:`\w+`(?:, )?)+)", text)
    assert {name for names in shown for name in re.findall(r"\w+", names)} - claims == set()


def test_the_page_of_the_guards_names_every_name_and_argument():
    wanted = set(lifehold.fence.__all__)
    for name in lifehold.fence.__all__:
        thing = getattr(lifehold.fence, name)
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            wanted |= members(thing) - {"count", "index", "key", "path"}
        if callable(thing):
            given = inspect.signature(thing).parameters
            wanted |= {name for name in given if name not in ("args", "facts", "text", "then")}
    assert wanted - named(page("reference/fence.md")) == set()


def test_the_page_of_the_simulator_is_what_its_figures_write():
    text = page("explanation/simulator.md")
    assert text == scale.written(text, json.loads(scale.FIGURES.read_text()))
    assert (DOCS / "assets/simulate-scale.svg").is_file()
