"""What is asked of a store and of a kind of lock is declared, each attribute of it."""

from __future__ import annotations

import ast

import pytest

import sources
from lifehold.core import backend, storage
from lifehold.core.owner import Owner

CONTRACTS = {"core/backend.py", "core/ports.py"}
# Who is asked, by the name that it has where it is asked: what may be asked of it.
ASKED = {"mechanism": "Mechanism", "backend": "Backend", "wakeups": "Wakeups"}
# These own what they ask: a store its own client, a face of another library its own kinds.
OWN = ("core/storage.py", "store/sqlite/", "store/postgres/", "compat/", "audit/", "testing/")


def trees():
    for name, tree in sources.trees().items():
        if not name.startswith(OWN):
            yield name, tree


def protocols():
    """Every declared Protocol: its bases, its members, its docstring."""
    found = {}
    for name in CONTRACTS:
        for node in ast.walk(sources.trees()[name]):
            if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
                members = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                members |= {e.name for e in node.body if isinstance(e, ast.AsyncFunctionDef)}
                bases = [ast.unparse(base) for base in node.bases]
                found[node.name] = bases, members, ast.get_docstring(node) or ""
    return found


def parts_of(base):
    """A Protocol and all that are made of it."""
    known = protocols()
    heirs = {base}
    while more := {n for n, (bases, *_) in known.items() if heirs & {*bases}} - heirs:
        heirs |= more
    above = {b for name in heirs for b in known[name][0] if b in known}
    return {name: known[name] for name in heirs | above}


def role(node):
    """Of whom something is asked: the last word of an expression."""
    return ast.unparse(node).rpartition(".")[2].lstrip("_")


def asked_of(kind):
    """(where, what) of every attribute that is asked of such."""
    return {
        (name, node.attr)
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and role(node.value) == kind
        and isinstance(node.ctx, ast.Load) and not ast.unparse(node.value).startswith("core.")
    }  # fmt: skip


@pytest.mark.parametrize("kind", ASKED)
def test_every_attribute_that_is_asked_is_declared(kind):
    declared = {member for _, members, _ in parts_of(ASKED[kind]).values() for member in members}
    asked = asked_of(kind)
    assert len({what for _, what in asked}) >= (2 if kind == "wakeups" else 8)
    assert not {each for each in asked if each[1] not in declared}


def test_nobody_asks_by_name_whether_a_part_is_there():
    found = [
        f"{name}: {ast.unparse(node)}"
        for name, tree in trees()
        if name not in CONTRACTS
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr")
        and role(node.args[0]) in {*ASKED, "site"}
    ]  # fmt: skip
    assert not found


def guards():
    """Each function that finds a part: the Protocol, and the members it asks for."""
    for name in CONTRACTS:
        for node in ast.walk(sources.trees()[name]):
            if isinstance(node, ast.FunctionDef) and "TypeGuard" in ast.unparse(node.returns):
                asks = {each.args[1].value for each in ast.walk(node) if isinstance(each, ast.Call)}
                yield ast.unparse(node.returns).partition("[")[2].rstrip("]"), asks


def test_a_part_is_found_by_its_own_methods_and_says_what_it_buys():
    known, found = protocols(), dict(guards())
    for part, asks in found.items():
        assert asks <= known[part][1], part
        assert known[part][2].startswith("Buys: "), part
    parts = {n for n, (_, _, text) in known.items() if text.startswith("Buys: ")}
    assert parts == set(found)


def test_traits_name_what_they_lack_in_words_that_are_known():
    assert backend.PLAIN.lacks == {}
    assert all(why for why in backend.CAPABILITIES.values())


def test_a_backend_of_before_declares_by_attributes():
    class Before:
        brief, limit = True, 3.0

    assert backend.traits_of(Before()) == backend.Traits(backend.SOON, 3.0)
    assert backend.traits_of(object()) == backend.PLAIN


def test_the_values_are_made_and_read_by_their_old_names():
    request = storage.Request("a", mark="m", ttl=1.0, owner=Owner(pid=1), bell="b", word="w")
    assert isinstance(request, backend.Request)
    assert (request.mark, request.bell, request.word) == ("m", "b", "w")
    assert (request.nonce, request.wakeup, request.handoff_id) == ("m", "b", "w")
    refused = backend.Refused()
    assert isinstance(refused, storage.Refused)
    assert not isinstance(request, storage.Refused)
    assert storage.Refused(seats=("x",)).seats == ("x",)
