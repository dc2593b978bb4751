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
# Of these a claim excuses what need not happen ...
EXCUSED = ("soft: ", "generation: ", "link: ", "directory: ", "folder: ")
# ... and of these the larger configurations may be cut by time.
CUT = (*EXCUSED, "filelock's ")


@pytest.mark.parametrize("claim", QUICK, ids=lambda claim: claim.name)
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


def test_the_command_prints_a_row_for_each_configuration(capsys):
    assert main(["-k", "3 clients, empty_file"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("  ")[0] for row in rows[:2]] == [
        "kernel: 3 clients, empty_file",
        "kernel: 3 clients, empty_file, 2 crashes",
    ]
    assert rows[-1].endswith("no configuration shows more than it may")
