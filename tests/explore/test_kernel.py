"""The shipped kernel lock in every configuration that testing/proofs.py makes a claim of."""

from __future__ import annotations

import pytest

from lifehold.testing.proofs import claims, kept, main

CLAIMS = {claim.name: claim for claim in claims()}
QUICK = [name for name, claim in CLAIMS.items() if not claim.soak]
SOAK = [name for name, claim in CLAIMS.items() if claim.soak]


@pytest.mark.parametrize("name", QUICK)
def test_the_shipped_kernel_lock_keeps_its_promise_in_every_interleaving(name):
    report = CLAIMS[name].game().run(seconds=60)
    assert kept(CLAIMS[name], report.kinds, report.exhaustive), report


@pytest.mark.soak
@pytest.mark.parametrize("name", SOAK)
def test_the_shipped_kernel_lock_keeps_its_promise_in_a_larger_world(name):
    report = CLAIMS[name].game().run(seconds=1800)
    assert kept(CLAIMS[name], report.kinds, report.exhaustive), report


@pytest.mark.parametrize(
    "name",
    [name for name in QUICK if CLAIMS[name].may_show],
)
def test_what_a_claim_excuses_does_happen(name):
    report = CLAIMS[name].game().run(seconds=60)
    assert report.kinds == CLAIMS[name].may_show, report


def test_every_name_is_used_once():
    assert len(CLAIMS) == len(list(claims()))


def test_the_command_prints_a_row_for_each_configuration(capsys):
    assert main(["-k", "3 clients, empty_file"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("  ")[0] for row in rows[:2]] == [
        "kernel: 3 clients, empty_file",
        "kernel: 3 clients, empty_file, 2 crashes",
    ]
    assert rows[-1].endswith("no configuration shows more than it may")
