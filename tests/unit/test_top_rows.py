"""The rows of `top` fit every terminal, whatever the locks are called."""

from __future__ import annotations

import pytest

from lifehold.cli import top_rows
from lifehold.cli.width import columns
from lifehold.core.grant import Holder
from lifehold.core.owner import Owner
from lifehold.local.kernel_holders import KernelWaiter
from lifehold.ops.answer import FREE, HELD, STALE, SUSPECT, LockAnswer

NOW = 1_000_000.0
HOSTILE = "/run/\x1b[2J\x1b]0;x\x07[bold]名前名前名前\u202e\n" + "é" * 300 + ".lock"


def of(name, state=HELD, since=NOW - 5, *, waiters=0, **more):
    owner = Owner(4242, user="ana" * 9, command=f"python {HOSTILE}")
    holder = None if state == FREE else Holder(owner, since, "alive", HOSTILE, pid_here=4242)
    queue = tuple(KernelWaiter(9, True) for _ in range(waiters))
    return LockAnswer(name, name, state, holder, waiting=queue, **more)


ALL = [
    of(HOSTILE, remedy=(f"clear it:  lifehold clear {HOSTILE}",)), of("/a", STALE, None),
    of("/b", SUSPECT, NOW - 1e9), of("/c", FREE), of("/d", waiters=3),
]  # fmt: skip


@pytest.mark.parametrize("wide", [20, 40, 59, 71, 72, 80, 99, 100, 120, 250])
def test_no_line_is_wider_than_the_terminal_and_none_moves_the_cursor(wide):
    rows = top_rows.rows_of(ALL, NOW, "state", free=True)
    lines = top_rows.as_text(rows, wide).split("\n")
    lines += [line for row in rows for line in top_rows.details(row, wide)]
    lines.append(top_rows.summary("web-3", rows, "state", NOW, wide))
    assert len(lines) == 1 + len(rows) + top_rows.DETAILS * len(rows) + 1
    assert [line for line in lines if columns(line) > max(wide, 35)] == []
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("wide", [20, 40, 80, 120])
@pytest.mark.parametrize("spare", [0, 1, 2, 3, 50])
def test_details_take_the_blank_rows_that_there_are_and_no_more(wide, spare):
    for row in top_rows.rows_of(ALL, NOW, "state", free=True):
        lines = top_rows.details(row, wide, spare)
        assert top_rows.DETAILS <= len(lines) <= top_rows.DETAILS + spare
        assert [line for line in lines if columns(line) > wide] == []
        assert all(line.isprintable() for line in lines)


def test_who_has_the_chosen_lock_is_told_whole_where_rows_are_blank():
    owner = Owner(4242, user="ana", host="web-3", command="python -m jobs.nightly --all --verbose")
    evidence = "kernel witness; process 4241 locked it and is gone, this one inherited its file"
    lock = LockAnswer("/a", "/a", HELD, Holder(owner, NOW - 5, "alive", evidence, pid_here=4242))
    (row,) = top_rows.rows_of([lock], NOW, "state")
    assert evidence not in " ".join(top_rows.details(row, 80))
    lines = top_rows.details(row, 80, 20)
    assert evidence in " ".join(line.strip() for line in lines)
    assert [line[:6] for line in lines] == [
        "lock  ",
        "by    ",
        *["      "] * (len(lines) - 3),
        "next  ",
    ]


def test_a_narrow_terminal_keeps_name_state_time_and_waiters():
    assert list(top_rows.widths(40)) == ["LOCK", "STATE", "FOR", "WAIT"]
    assert "COMMAND" in top_rows.widths(80)
    assert "USER" in top_rows.widths(120)
    (row,) = top_rows.rows_of([of("/srv/app/shared/tmp/server.pid", waiters=2)], NOW, "name")
    told = top_rows.cells(row, top_rows.widths(40))
    assert told == {"LOCK": "...p/server.pid", "STATE": "held", "FOR": "5s", "WAIT": "2"}


def test_each_order_puts_first_what_it_is_about():
    def names(sort, **more):
        return [row.answer.name for row in top_rows.rows_of(ALL, NOW, sort, **more)]

    assert names("state")[:2] == ["/a", "/b"]
    assert names("time")[0] == "/b"
    assert names("waiters")[0] == "/d"
    assert names("name") == sorted(names("time"))
    assert names("name", reverse=True) == sorted(names("time"))[::-1]
    assert "/c" not in names("name")
    assert "/c" in names("name", free=True)


def test_a_time_that_is_only_bounded_is_shown_so():
    holder = Holder(Owner(1), None, "alive", pid_here=1, began=NOW - 7500)
    (row,) = top_rows.rows_of([LockAnswer("a", "/a", HELD, holder)], NOW, "time")
    assert top_rows.cells(row, top_rows.widths(40))["FOR"] == "<2h5m"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m"), (250, "4m10s"), (41640, "11h34m"), (1e8, "1157d9h")],
)
def test_a_length_of_time_takes_seven_columns(seconds, text):
    assert top_rows.short_span(seconds) == text
    assert len(text) <= 7
