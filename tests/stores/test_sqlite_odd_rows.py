"""L13  A row of a shared store that no step has written: it costs its own name alone.

A column of SQLite takes any type, whatever it is declared as.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import pytest

from lifehold import CorruptRecord, LifeholdError, connect
from patience import SOON

ODD = [b"x", "x", None, -5, 2**63 - 1, 1.5, float("inf"), "\0", "9" * 5000, "1.9:m" * 400]
NO_TEXT = b"\xff"  # which SQLite keeps as TEXT all the same
ROWS = {
    "lifehold_names": {"name": "b", "token": 5, "capacity": 1},
    "lifehold_chairs": {
        "name": "b", "seat": 1, "mark": "m", "token": 5, "weight": 1, "slot": 0, "shared": 0,
        "ttl": 30.0, "delay": 0.0, "ends_at": 9e9, "clock": "c", "acquired_at": 1.0,
        "renewals": 0, "owner": "{}",
    },
    "lifehold_line": {
        "name": "b", "spot": 1, "mark": "m", "weight": 1, "dies_at": 9e9, "clock": "c",
        "bell": "1.1.1:m", "called_at": None,
    },
    "lifehold_kept": {"name": "b", "token": 5, "text": "t"},
}  # fmt: skip
COLUMNS = [(table, column) for table, row in ROWS.items() for column in row]


@pytest.fixture
def store(tmp_path):
    store = connect(f"sqlite:///{tmp_path}/locks.db")
    for name in "az":
        store.lock(name).acquire().release()
    yield store
    store.close()


@pytest.fixture
def lifehold():
    """The command."""

    def call(*words):
        return subprocess.run(
            [sys.executable, "-m", "lifehold", *words],
            capture_output=True, text=True, timeout=4 * SOON, check=False,
        )  # fmt: skip

    return call


def written(tmp_path, table, **odd):
    """Whether SQLite took a row of the name b, beside good ones."""
    db = sqlite3.connect(tmp_path / "locks.db")
    row = ROWS[table] | odd
    marks = ("CAST(? AS TEXT)" if each == NO_TEXT else "?" for each in row.values())
    db.execute("DELETE FROM lifehold_chairs WHERE name NOT IN ('a', 'z')")
    db.execute("INSERT OR REPLACE INTO lifehold_names VALUES ('b', 5, 1)")
    try:
        db.execute(
            f"INSERT OR REPLACE INTO {table} ({', '.join(row)}) VALUES ({', '.join(marks)})",
            list(row.values()),
        )
        db.commit()
    except sqlite3.Error:
        return False
    finally:
        db.close()
    return True


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=lambda each: each)
def test_an_odd_row_costs_its_own_name_and_an_order_removes_it(store, tmp_path, table, column):
    for odd in [*ODD, NO_TEXT]:
        if not written(tmp_path, table, **{column: odd}):
            continue
        assert {"a", "z"} <= set(store.list())
        assert {"a", "z"} <= {state.name for state in store.states()}
        with store.lock("a", wait=0):
            pass
        for ask in (
            lambda: store.inspect("b"),
            lambda: store.lock("b", wait=0).acquire().release(),
            lambda: store.lock("b", wait=0.01, notify=False).acquire().release(),
            lambda: store.prune(60),
        ):
            try:
                ask()
            except LifeholdError:
                pass
        store.break_("b", "its row is none of ours")
        with store.lock("b", wait=0) as lease:
            assert lease.token > 5


def test_it_is_told_by_ls_and_who_and_removed_by_clear(store, tmp_path, lifehold):
    assert written(tmp_path, "lifehold_names", token="x")
    listed = json.loads(lifehold("ls", "--json", store.url).stdout)["locks"]
    told = {each["name"][-2:]: each for each in listed}
    assert {name: each["state"] for name, each in told.items()} == {
        "#a": "free", "#b": "suspect", "#z": "free"
    }  # fmt: skip
    assert "token is 'x'" in told["#b"]["note"]
    looked = lifehold("who", f"{store.url}#b")
    assert looked.returncode == 65
    assert "`lifehold clear`" in looked.stderr
    kept = lifehold("clear", f"{store.url}#b")
    assert kept.returncode == 1
    assert "damaged" in kept.stdout + kept.stderr
    assert lifehold("clear", "--force", "damaged", f"{store.url}#b").returncode == 0
    assert lifehold("who", f"{store.url}#b").returncode == 1
    db = sqlite3.connect(tmp_path / "locks.db")
    ((verb, before),) = db.execute("SELECT verb, before FROM lifehold_audit")
    db.close()
    assert verb == "break"
    assert "token is 'x'" in before


def test_a_row_of_the_store_itself_that_is_none_of_ours_is_said_to_be_so(store, tmp_path):
    for column in ("least", "floor", "ceiling"):
        db = sqlite3.connect(tmp_path / "locks.db")
        (before,) = db.execute(f"SELECT {column} FROM lifehold_meta").fetchone()
        db.execute(f"UPDATE lifehold_meta SET {column} = 'x'")
        db.commit()
        with pytest.raises(CorruptRecord, match="lifehold_meta"):
            store.inspect("a")
        db.execute(f"UPDATE lifehold_meta SET {column} = ?", (before,))
        db.commit()
        db.close()
