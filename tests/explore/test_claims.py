"""What is claimed of the shipped locks, in every interleaving: each claim is played once.

`-k "soft: "` chooses the claims of one kind. Their mutants stand in the files beside this one.
"""

from __future__ import annotations

import pytest

from explore.claims import every, main
from explore.claims.claim import Claim, kept

CLAIMS = list(every())
QUICK = [claim for claim in CLAIMS if not claim.soak]
SOAK = [claim for claim in CLAIMS if claim.soak]
# Two seconds of a processor and more: `make check` leaves them to `make test`.
LARGE = """
directory: 1 client, 2 of mkdir
directory: 2 clients, dead_holder, 2 crashes
directory: 2 clients, no witness, oracle unsure, dead_holder
directory: 2 clients, no witness, oracle unsure, nothing there
directory: 2 clients, nothing there, 2 crashes
fence: 2 writers and a reader
fence: 2 writers, each advances
filelock's lease: filelock holds, ours looks twice
filelock's lease: one renews, one looks twice
filelock's lease: ours renews, filelock waits
filelock's reader/writer log: 2 writers
filelock's strict lock: 2 clients waiting
folder: 2 clients, dead_holder
folder: 2 clients, dead_waiter
folder: 2 clients, empty
folder: 2 clients, one without patience, empty
generation: 2 clients, NFS, dead_holder
generation: 2 clients, NFS, free_folder
generation: 2 clients, lease only, dead_leased
generation: 2 clients, no folder
kernel: 1 client, 2 of a tool that unlinks and checks, 2 rounds
kernel: 1 client, 2 of a tool that unlinks, 2 rounds
kernel: 2 clean up, one does not
kernel: 2 clients waiting, a tool that unlinks
kernel: 2 clients waiting, a tool that unlinks and checks
kernel: 2 clients, 2 rounds, cleanup
kernel: 2 clients, 2 rounds, wait 3 s, cancel
kernel: 2 clients, 2 rounds, wait 3 s, cancel, left_by_the_dead
kernel: 2 clients, someone removes the file
kernel: 3 clients, 2 rounds
kernel: 3 clients, cleanup
kernel: 3 clients, cleanup, 2 crashes
kernel: 3 clients, wait 3 s, cancel
kernel: 3 clients, wait 3 s, cancel, 2 crashes
soft reader/writer: a writer and a reader
soft: 2 clients waiting, a dead record
soft: 2 clients, judge late
soft: 2 clients, no record
soft: NFS, 2 clients
soft: lease, one renews, one comes back
""".split("\n")[1:-1]
# Of these a claim excuses what need not happen ...
EXCUSED = ("soft: ", "generation: ", "link: ", "directory: ", "folder: ")
# ... and of these the larger configurations may be cut by time.
CUT = (*EXCUSED, "filelock's ")


def sized(claim: Claim) -> object:
    """Its parameter of a test, marked where it is large."""
    marks = [pytest.mark.large] if claim.name in LARGE else []
    return pytest.param(claim, id=claim.name, marks=marks)


@pytest.mark.parametrize("claim", [sized(claim) for claim in QUICK])
def test_a_shipped_lock_keeps_its_promise_in_every_interleaving(claim: Claim):
    report = claim.game().run(seconds=600)
    assert kept(claim, report.kinds, report.exhaustive), report
    if not claim.name.startswith(EXCUSED):
        assert report.kinds == claim.may_show  # what a claim excuses does happen


@pytest.mark.soak
@pytest.mark.parametrize("claim", SOAK, ids=lambda claim: claim.name)
def test_a_shipped_lock_keeps_its_promise_in_a_larger_world(claim: Claim):
    report = claim.game().run(seconds=1800)
    whole = report.exhaustive or claim.name.startswith(CUT)
    assert kept(claim, report.kinds, whole), report


def test_every_name_is_used_once():
    names = [claim.name for claim in CLAIMS]
    assert sorted(set(names)) == sorted(names)
    assert not {*LARGE} - {*names}


def test_the_command_prints_a_row_for_each_configuration(capsys):
    assert main(["-k", "3 clients, empty_file"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("  ")[0] for row in rows[:2]] == [
        "kernel: 3 clients, empty_file",
        "kernel: 3 clients, empty_file, 2 crashes",
    ]
    assert rows[-1].endswith("no configuration shows more than it may")
