"""The explorer finds every protocol known to be wrong, and lets their good relatives pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from explore import known_bad as bad
from explore import known_bad_more as more
from lifehold.testing.explore import MUTEX, TOKEN, WEDGED, Client, Exploration, Model

SECONDS = 60.0


class Case(NamedTuple):
    """One protocol in one configuration, and the kinds of violation it must show."""

    program: Callable[[], bad.Program]
    expected: set[str]
    clients: int = 3
    start: Callable | None = bad.stale
    model: Callable[[], Model] = bad.Local
    crashes: int = 1


def taking(turn: Callable, again: str = "read") -> Callable[[], bad.Program]:
    return lambda: bad.break_under(turn, again)


WRONG = {
    "seed000: check, remove, create": Case(bad.check_then_remove, {MUTEX}, clients=2),
    "seed000: split create and write": Case(
        lambda: bad.check_then_remove(split=True), {MUTEX}, start=None, crashes=0
    ),
    "seed004: rename, verify": Case(bad.rename_then_verify, {MUTEX}),
    "seed004: rename, verify, from empty": Case(bad.rename_then_verify, {MUTEX}, start=None),
    "seed004: roll back by link": Case(lambda: bad.rename_then_verify(roll_back=True), {MUTEX}),
    "liblockfile: link, stat, unlink stale": Case(bad.link_then_stat, {MUTEX}, clients=2),
    "liblockfile: from empty": Case(bad.link_then_stat, {MUTEX}, start=None),
    "rename over, verify": Case(bad.rename_over_then_verify, {MUTEX}, clients=2),
    "auxiliary flock, not read again": Case(taking(bad.by_flock, ""), {MUTEX}),
    "auxiliary lock file": Case(taking(bad.by_file), {WEDGED}),
    "claim per dead owner": Case(taking(bad.by_claim), {WEDGED}),
    "claim per dead owner, cleaned": Case(taking(bad.by_claim_cleaned), {WEDGED}),
    "claim cleaned, not verified": Case(taking(bad.by_claim_cleaned, ""), {MUTEX}, clients=2),
    "flock, unlink, no inode check": Case(
        lambda: more.flock_file(unlink=True, check=False), {MUTEX}, start=None
    ),
    "generations released by unlink": Case(
        lambda: more.generations(release="unlink"), {TOKEN}, clients=2
    ),
    "bids without a stale rule": Case(
        lambda: more.bids(stale_rule=False), {WEDGED}, clients=2, start=None
    ),
    "bids in two steps": Case(
        lambda: more.bids(stale_rule=True, split=True), {WEDGED}, clients=2, start=None
    ),
    "NFS: rename, verify": Case(bad.rename_then_verify, {MUTEX}, clients=2, model=bad.Network),
    "NFS: roll back by link": Case(
        lambda: bad.rename_then_verify(roll_back=True), {MUTEX}, clients=2, model=bad.Network
    ),
    "NFS: liblockfile": Case(bad.link_then_stat, {MUTEX}, clients=2, model=bad.Network),
    "NFS: auxiliary flock, looked at by stat": Case(
        taking(bad.by_flock, "lstat"), {MUTEX}, clients=2, model=bad.Network
    ),
}

RIGHT = {
    "flock, never unlinked": Case(
        lambda: more.flock_file(unlink=False, check=False), set(), start=None
    ),
    "flock, unlink, inode check": Case(
        lambda: more.flock_file(unlink=True, check=True), set(), start=None
    ),
    "auxiliary flock, read again": Case(taking(bad.by_flock), set()),
    "generations released by a sign": Case(
        lambda: more.generations(release="replace"), set(), clients=2
    ),
    "seed004 + roll back, two clients": Case(
        lambda: bad.rename_then_verify(roll_back=True), set(), clients=2
    ),
    "flock, no check, two clients": Case(
        lambda: more.flock_file(unlink=True, check=False), set(), clients=2, start=None
    ),
    "bids with a stale rule": Case(lambda: more.bids(stale_rule=True), set(), clients=2),
    "NFS: auxiliary flock, read again": Case(
        taking(bad.by_flock), set(), clients=2, model=bad.Network
    ),
}


def game(case: Case, name: str = "") -> Exploration:
    client = Client(case.program())
    return Exploration(
        *[client] * case.clients,
        crashes=case.crashes,
        start=case.start,
        model=case.model(),
        name=name,
    )


@pytest.mark.parametrize("name", WRONG)
def test_a_known_bad_protocol_is_found(name):
    case = WRONG[name]
    explored = game(case, name)
    report = explored.run(seconds=SECONDS, stop_at=case.expected & {MUTEX, TOKEN})
    assert case.expected <= report.kinds, report
    assert MUTEX in case.expected or MUTEX not in report.kinds, report
    for kind in case.expected - {WEDGED}:
        again = explored.replay(report.violations[kind].schedule)
        assert kind in again.kinds, again


@pytest.mark.parametrize("name", RIGHT)
def test_its_good_relative_passes_every_interleaving(name):
    report = game(RIGHT[name], name).run(seconds=SECONDS)
    assert report.exhaustive, report
    assert not report.violations, report


if __name__ == "__main__":
    for name, case in {**WRONG, **RIGHT}.items():
        print(game(case, name).run(seconds=SECONDS).line(), flush=True)
