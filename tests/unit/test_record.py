"""The record on disk: one JSON object, 1 KiB, never a surprise for whoever reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from lifehold import CorruptRecord
from lifehold.core.explain import utc
from lifehold.core.fence import LARGEST
from lifehold.core.owner import Owner
from lifehold.core.value import replace
from lifehold.local import record as form
from lifehold.local.record import COPY, FOREIGN, FRESH, NEWER, OURS, SIZE, Record
from lifehold.runtime.process import here

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "record.schema.json"
INO, MARK, TOKEN, STAMP = 4711, "5f0c1d9a7be34210", 1_795_140_004_000_001, 1_795_140_004_123_456
TEXT = some.none() | some.text(max_size=3000)
NUMBER = some.none() | some.integers(0, 2**64)
OWNERS = some.builds(
    Owner,
    some.integers(1, 2**31),
    TEXT,
    TEXT,
    TEXT,
    NUMBER,
    NUMBER,
    NUMBER,
    NUMBER,
    NUMBER,
    NUMBER,
    TEXT,
    TEXT,
    TEXT,
    some.text(max_size=3000),
)
MACHINE = "0d5c9c8e6a3b4d4fa0f2a7f5d1b2c3e4"
BOOT = "7d1f7f0e-3a53-4d7e-9a4c-2f8f3a1b9c55"


def written(owner: Owner, token: int = TOKEN, stamp: int = STAMP, ino: int = INO) -> bytes:
    return form.numbered(form.parts(ino, MARK, owner), token, stamp)


@given(OWNERS, some.integers(1, LARGEST), some.integers(0, 2**62), some.integers(1, 2**64 - 1))
def test_every_owner_makes_a_record_of_exactly_one_kilobyte(owner, token, stamp, ino):
    content = written(owner, token, stamp, ino)
    assert len(content) == SIZE
    assert content.endswith(b"\n")
    assert content.count(b"\n") == 1
    assert content.isascii()
    found = json.loads(content)
    assert (found["token"], found["end"], found["ino"]) == (token, token, ino)


@given(OWNERS)
def test_what_was_written_is_read_again_but_for_what_was_cut(owner):
    found = form.parse(written(owner))
    assert not found.torn
    assert (found.token, found.nonce) == (TOKEN, f"{MARK}-{TOKEN}")
    assert found.acquired_at == STAMP / 1e6
    for field in form.NUMBERS:
        assert getattr(found.owner, field) == getattr(owner, field)
    for field in form.STRINGS:
        whole, kept = getattr(owner, field), getattr(found.owner, field)
        if whole is None:
            assert kept is None
        else:
            again = json.loads(json.dumps(whole))  # surrogate pairs become one character
            assert again.startswith(kept) or whole.startswith(kept)


def test_an_ordinary_owner_is_kept_whole():
    owner = Owner(
        4127, "web-3.example.org", MACHINE, BOOT, 4026531836, 4026531834, 884211, 4711, 4127, 1000,
        "ana", "9f2c" * 16, "python report.py --full", "nightly",
    )  # fmt: skip
    assert form.parse(written(owner)).owner == owner
    # The command is that of the test run, of any length.
    ours = replace(here("x"), command="python report.py --full")
    assert form.parse(written(ours)).owner == ours


def test_a_huge_command_is_cut_and_the_identity_is_not():
    owner = Owner(
        1, "h", MACHINE, BOOT, 1, 2, 3, 4, command="漢" * 10_000, user="u" * 900, label="l"
    )
    found = form.parse(written(owner)).owner
    assert (found.host, found.machine_id, found.boot_id) == ("h", MACHINE, BOOT)
    assert found.label
    assert owner.command.startswith(found.command)


def test_a_hostname_of_any_length_leaves_room_for_the_boot_id():
    owner = Owner(1, "h" * 64, MACHINE, BOOT, container="c" * 64, user="u" * 32, label="x" * 5000)
    found = form.parse(written(owner)).owner
    assert (found.host, found.boot_id, found.container) == (owner.host, BOOT, owner.container)


@pytest.mark.skipif(not SCHEMA.exists(), reason="needs docs/reference/record.schema.json")
@given(owner=OWNERS)
@example(owner=here("nightly"))
@settings(max_examples=30, deadline=None)
def test_every_record_keeps_to_the_published_schema(owner):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.validate(json.loads(written(owner)), schema)
    assert set(json.loads(written(owner))) == set(schema["required"])


@given(some.integers(0, SIZE), OWNERS)
@settings(max_examples=50)
def test_a_record_written_half_over_another_is_seen_as_torn(cut, owner):
    old, new = written(owner, TOKEN), written(owner, TOKEN + 99)
    found = form.parse(new[:cut] + old[cut:])
    if found.torn:
        assert (
            TOKEN <= found.token < TOKEN + 1000
        )  # at worst digits of both: never less than the old
        assert (found.owner, found.nonce) == (None, None)
    else:
        assert found.token in (TOKEN, TOKEN + 99)


def test_a_truncated_record_still_yields_its_token():
    whole = written(here())
    for length in range(len(form.MAGIC), SIZE - 1):
        found = form.parse(whole[:length])
        assert found.token in (TOKEN, None) or found.torn
    assert form.parse(whole[:200]).token == TOKEN


@pytest.mark.parametrize("damage", [b"\xff", b"\0", b"}", b'"'])
def test_the_greater_of_both_tokens_survives_damage(damage):
    content = written(here())
    torn = content.replace(b'"nonce":', b'"nonce":' + damage, 1)
    found = form.parse(torn)
    assert found.torn
    assert found.token == TOKEN
    old = b"%20d" % 5
    assert form.parse(content.replace(b"%20d" % TOKEN, old, 1)).token == TOKEN


def test_a_poisoned_token_is_corrupt_and_not_followed():
    nines = b"9" * 20
    for content in (
        written(here()).replace(b"%20d" % TOKEN, nines),
        b'{"lifehold":1,"token":' + nines,
    ):
        with pytest.raises(CorruptRecord, match="99999999999999999999"):
            form.parse(content)
    head = form.head_of(INO)
    with pytest.raises(CorruptRecord, match="64 bits"):
        form.token_of(head, head + nines)
    assert form.token_of(head, head + b"%20d" % LARGEST) == LARGEST


def test_content_is_told_apart_by_its_first_bytes():
    head = form.head_of(INO)
    for content, kind in {
        written(here()): OURS,
        head: OURS,
        written(here(), ino=INO + 1): COPY,
        b"": FRESH,
        b"\0" * 60: FRESH,
        b'{"lifehold":2,"x":1}': NEWER,
        b'{"lifehold":19,': NEWER,
        b'{"lifehold":0,': COPY,
        b'{"lifehold":x,': COPY,
        b'{"lifehold"': FOREIGN,
        b"4127\n": FOREIGN,
        b" ": FOREIGN,
        b"#!/bin/sh": FOREIGN,
        b'{"pid":1}': FOREIGN,
        b"\0\0x": FOREIGN,
    }.items():
        assert form.classify(head, content) == kind, content[:30]


def test_the_token_of_our_own_head_may_be_unreadable():
    head = form.head_of(INO)
    assert form.token_of(head, head + b"                  12") == 12
    for bad in (b"", b"                    ", b"    -5", b"12x", b"\xd9\xa1", "١٢".encode()):
        assert form.token_of(head, head + bad) is None


JUNK = some.one_of(
    some.binary(max_size=1100),
    some.binary(max_size=1100).map(lambda b: form.MAGIC + b),
    some.text(max_size=300).map(
        lambda t: form.MAGIC + b'1,"token":' + t.encode("utf-8", "replace")
    ),
    some.builds(
        lambda a, b: form.MAGIC + json.dumps([a, b]).encode(), some.integers(), some.floats()
    ),
    some.dictionaries(
        some.sampled_from(
            ["token", "end", "acquired_at_us", "pid", "host", "label", "nonce", "ino"]
        ),
        some.none()
        | some.booleans()
        | some.integers()
        | some.floats()
        | some.text()
        | some.lists(some.none()),
    ).map(lambda d: json.dumps({"lifehold": 1, **d}, separators=(",", ":")).encode()),
)


@given(JUNK)
@example(form.MAGIC + b"[" * 900)
@example(form.MAGIC + b'1,"token":1e999,"end":1e999}')
@example(form.MAGIC + b"1" * 900)
@example(form.MAGIC + b"1" * 5000 + b"}")
@settings(max_examples=300)
def test_no_content_breaks_the_reader(junk):
    try:
        found = form.parse(junk)
    except CorruptRecord:
        return
    if found is None:
        assert not junk.startswith(form.MAGIC)
        return
    assert isinstance(found, Record)
    assert found.token is None or (type(found.token) is int and 0 <= found.token <= LARGEST)
    if not found.torn:
        form.as_holder(found, "x")
        owner = found.owner
        assert {type(owner.pid), type(owner.label)} == {int, str}
        assert {type(getattr(owner, field)) for field in form.NUMBERS} <= {int, type(None)}
        assert {type(getattr(owner, field)) for field in form.STRINGS} <= {str, type(None)}
    form.classify(form.head_of(INO), junk)


@given(some.binary(min_size=1, max_size=30), some.integers(0, SIZE - 30))
def test_a_damaged_record_never_names_a_wrong_type(patch, at):
    content = written(Owner(1, "h", MACHINE, BOOT, 1, 2, 3, 4, 5, 6, "u", None, "c", "l"))
    try:
        found = form.parse(content[:at] + patch + content[at + len(patch) :])
    except CorruptRecord:
        return
    if found is not None and not found.torn:
        for field in form.NUMBERS:
            assert getattr(found.owner, field) is None or type(getattr(found.owner, field)) is int
        for field in form.STRINGS:
            assert getattr(found.owner, field) is None or type(getattr(found.owner, field)) is str


def test_a_record_of_a_newer_lifehold_may_add_fields():
    content = written(replace(here(), command="c")).rstrip(b" \n}") + b',"colour":"red"}\n'
    assert not form.parse(content).torn


def test_a_time_that_no_calendar_has_is_damage():
    content = form.numbered(form.parts(7, MARK, Owner(1)), TOKEN, form.LATEST + 1)
    found = form.parse(content)
    assert found.torn
    assert found.token == TOKEN
    last = form.parse(form.numbered(form.parts(7, MARK, Owner(1)), TOKEN, form.LATEST))
    assert utc(last.acquired_at) == "9999-12-31 23:59:59 UTC"
