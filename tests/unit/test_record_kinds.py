"""The records of soft, link and generation: the published schema knows every member; what is
missing, newer or damaged is read in the way that robs nobody."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from lifehold import Lock
from lifehold.local import judge as evidence
from lifehold.local.files import HOST
from lifehold.local.ground import MountInfo
from lifehold.local.judge import LivenessJudge
from lifehold.local.record import CURRENT, FROM_NEWER, OLDER, UNREADABLE, read
from lifehold.local.record_handle import BorrowedRecord
from lifehold.runtime import clock

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/record.schema.json").read_text(encoding="utf-8")
)
KINDS = ["kernel", "soft", "link", "generation"]
ADDED = ["kind", "state", "after", "created", "ground", "witness"]
NEAR, FAR = MountInfo("ext4", "8:1"), MountInfo("nfs4", "0:9")


def record_of(path, kind):
    """The bytes of the record that is there."""
    file = max(path.iterdir()) if kind == "generation" else path
    return file.read_bytes()


def held(path, kind, **options):
    lease = Lock(path, kind=kind, **options).acquire(0)
    content = record_of(path, kind)
    return lease, content, json.loads(content[content.index(b"{") :])


@pytest.mark.parametrize("ttl", [None, 30])
@pytest.mark.parametrize("kind", KINDS)
def test_a_real_record_keeps_the_schema_which_knows_every_member(tmp_path, kind, ttl):
    options = {} if kind == "kernel" or ttl is None else {"ttl": ttl}
    lease, content, found = held(tmp_path / "lock", kind, **options)
    jsonschema.validate(found, SCHEMA)
    assert set(found) <= set(SCHEMA["properties"])
    assert len(content) <= 1024  # what filelock's SoftFileLock reads of a marker
    assert len(content[content.index(b"{") :]) == (1024 if kind == "kernel" else 1012)
    marker = read(content)
    assert (marker.state, marker.kind, marker.token) == (CURRENT, kind, lease.token)
    assert (marker.nonce, marker.ttl) == (lease.nonce, options.get("ttl"))
    lease.release()
    if kind == "generation":
        after = json.loads(record_of(tmp_path / "lock", kind))
        jsonschema.validate(after, SCHEMA)
        assert after["state"] == "released"


@pytest.mark.parametrize("kind", KINDS[1:])
def test_each_added_member_is_required_of_these_kinds(tmp_path, kind):
    lease, _, found = held(tmp_path / "lock", kind)
    lease.release()
    for member in ADDED[1:]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({k: v for k, v in found.items() if k != member}, SCHEMA)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_record_without_the_added_members_is_held_and_proves_no_death(tmp_path, kind):
    """As an older version would have written it."""
    lease, _, found = held(tmp_path / "lock", kind)
    lease.release()
    old = json.dumps(
        {k: v for k, v in found.items() if k == "kind" or k not in ADDED}, separators=(",", ":")
    )
    path = tmp_path / "old"
    path.write_bytes(old.encode().ljust(1023) + b"\n")
    for place in (NEAR, FAR):
        assert case(path, kind, place).state == "unknown"
    marker = read(path.read_bytes())
    assert (marker.stage, marker.witness, marker.one_kernel, marker.after) == (
        "held", False, False, "",
    )  # fmt: skip


def case(path, kind, place, seen=None):
    judge = LivenessJudge(kind, {} if seen is None else seen)
    with path.open("rb") as file:
        return judge.judged(str(path), BorrowedRecord(HOST, file.fileno()), place, clock.now)


@pytest.mark.parametrize(
    ("content", "place", "patience"),
    [
        (b'{"lifehold":2,"ttl":5}', NEAR, evidence.GRACE),
        (b'{"lifehold":2,"ttl":600,"x":[]}', FAR, 600.0),
        (b'{"lifehold":2,"x":1}', NEAR, evidence.GRACE),
        (b'{"lifehold":2,"x":1}', FAR, None),
        (b'{"lifehold":3,"ttl":', FAR, None),
    ],
)
def test_a_newer_record_is_held_until_its_own_lease_or_witness_says_otherwise(
    tmp_path, content, place, patience
):
    path = tmp_path / "newer"
    path.write_bytes(content)
    seen = {}
    found = case(path, "soft", place, seen)
    assert (found.state, found.marker.state) == ("unknown", FROM_NEWER)
    if patience is None:
        assert not seen  # no time of ours will ever end it
    else:
        assert abs(found.due - clock.now() - patience) < 5
        [(record, since)] = seen.values()
        seen[str(path)] = record, since - patience - 1
        assert case(path, "soft", place, seen).state == "dead"


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (b"", UNREADABLE),
        (b"0\n", UNREADABLE),
        (b"4711\n", OLDER),
        (b'{"pid":4711,"created":1.0}', OLDER),
        (b'{"lifehold":1,"kind":"soft"', UNREADABLE),
        (b"\0" * 1024, UNREADABLE),
        (b"99999999999\n", UNREADABLE),
    ],
)
def test_what_is_there_is_never_taken_for_nothing(tmp_path, content, state):
    path = tmp_path / "there"
    path.write_bytes(content)
    assert read(content).state == state
    assert case(path, "soft", FAR).state == "unknown"
