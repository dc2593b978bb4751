"""The suite finds what is wrong: a known-bad mechanism breaks the claim that is about its fault."""

from __future__ import annotations

import dataclasses
import gc
import sys
import time
from contextlib import contextmanager
from typing import ClassVar

import pytest

from lifehold import registry
from lifehold.core.grant import Grant, Held
from lifehold.core.value import replace
from lifehold.testing import conformance
from lifehold.testing.claims import exclusion
from lifehold.testing.conformance import (
    CAPABILITIES,
    Case,
    ClaimBroken,
    Subject,
    cases,
    check,
    pauses,
    report,
)
from lifehold.testing.dict_lock import MemoryLock, MemoryLocks
from lifehold.testing.stage import Claim
from patience import until

# What a broken claim leaves behind is part of the fault.
pytestmark = [
    pytest.mark.filterwarnings("ignore:lease of:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
IN_MEMORY = dict.fromkeys(("processes", "survives_crash"), "one process")


class LetsTwoIn(MemoryLock):
    def attempt(self):
        if len(self.locks.place(self.path).holders) == 1:
            self.locks.place(self.path).holders.clear()
        return super().attempt()


class RepeatsItsToken(MemoryLock):
    def attempt(self):
        answer = super().attempt()
        return replace(answer, token=1) if isinstance(answer, Grant) else answer


class RepeatsItsNonce(MemoryLock):
    def attempt(self):
        answer = super().attempt()
        return (
            replace(answer, mark="same", token=None, acquired_at_ns=1)
            if isinstance(answer, Grant)
            else answer
        )


class ReleasesAnybodys(MemoryLock):
    def drop(self, grant):
        self.locks.lose(self.path)
        return super().drop(grant)


class NeverLooksAgain(MemoryLock):
    async def wait(self, ask, until):
        await self.runtime.sleep(max(0.0, min(0.05, until - self.runtime.now())))
        return Held(key=self.path)


class TriesOnceTooLate(MemoryLock):
    """A wait that is cancelled or too late takes the lock nevertheless, and nobody knows."""

    async def wait(self, ask, until):
        answer = await super().wait(ask, until)
        if isinstance(answer, Grant) and self.runtime.now() > until - 0.0005:
            answer.handle[0].generation = -1
            return Held(key=self.path)
        return answer


class NeverNoticesALoss(MemoryLock):
    def check(self, grant):
        return None


class KeepsWhatIsDropped(MemoryLock):
    kept: ClassVar[list[object]] = []

    def attempt(self):
        answer = super().attempt()
        if isinstance(answer, Grant):
            self.kept.extend(answer.handle)
        return answer


class NamesNobody(MemoryLock):
    def inspect(self, *, held=False):
        return None


class IgnoresReaders(MemoryLock):
    def attempt(self):
        if self.exclusive and not self.locks.place(self.path).exclusive:
            self.locks.place(self.path).holders.clear()
        return super().attempt()


class FreesEarly(MemoryLock):
    """A lease is forgotten at a quarter of its ttl: granted, or renewed."""

    def forgets(self, answer):
        if isinstance(answer, Grant) and self.terms:
            with self.locks.mutex:
                holders = self.locks.place(self.path).holders
                if answer.mark in holders:
                    early = self.runtime.now() + self.terms.ttl / 4
                    holders[answer.mark] = early, *holders[answer.mark][1:]
        return answer

    def attempt(self):
        return self.forgets(super().attempt())

    async def renew(self, grant):
        return self.forgets(await super().renew(grant))


class FreesEarlyWhatWasRenewed(FreesEarly):
    def attempt(self):
        return MemoryLock.attempt(self)


class SleepsPastTheEnd(MemoryLock):
    async def wait(self, ask, until):
        await self.runtime.sleep(0.8)
        return self.attempt()


class GivesReadersTheirOwnToken(MemoryLock):
    def attempt(self):
        answer = super().attempt()
        if isinstance(answer, Grant) and not self.exclusive:
            return replace(answer, token=(answer.token or 0) + 7)
        return answer


class CountsAnewAfterALoss(MemoryLock):
    """Its counter lies beside the holder's record, and goes with it."""

    counts: ClassVar[dict[str, int]] = {}

    def attempt(self):
        answer = super().attempt()
        if not isinstance(answer, Grant):
            return answer
        count = self.counts[self.path] = self.counts.get(self.path, 0) + 1
        return replace(answer, token=count)


FAULTS = {
    LetsTwoIn: "workers_are_never_inside_together",
    RepeatsItsToken: "each_token_is_greater_than_the_last",
    RepeatsItsNonce: "no_nonce_is_used_twice",
    ReleasesAnybodys: "a_second_release_is_refused_and_hurts_nobody",
    NeverLooksAgain: "a_deadline_is_the_last_moment_to_get_it",
    NeverNoticesALoss: "a_loss_is_told_by_check_release_event_and_callback",
    KeepsWhatIsDropped: "a_lease_that_is_dropped_frees_the_lock_with_a_warning",
    NamesNobody: "the_holder_is_named_with_evidence_while_it_holds",
    IgnoresReaders: "readers_share_it_and_keep_a_writer_out",
    SleepsPastTheEnd: "a_wait_is_over_soon_after_its_deadline",
    GivesReadersTheirOwnToken: "readers_carry_the_token_of_the_last_writer",
    FreesEarly: "a_lease_whose_renewals_get_no_answer_is_lost_at_its_deadline",
    FreesEarlyWhatWasRenewed: ("a_renewed_lease_is_taken_over_at_its_new_deadline_at_the_earliest"),
    TriesOnceTooLate: "a_deadline_that_meets_the_release_leaves_nothing_held",
}


@pytest.fixture(autouse=True)
def collected():
    """What a fault leaves behind ends with its test, where that is expected."""
    yield
    gc.collect()


@pytest.fixture
def subject():
    ends = []

    def offered(mechanism) -> Subject:
        locks = MemoryLocks()

        def make(path, runtime, **options):
            return mechanism(locks, path, runtime, **options)

        make.leased = True
        ends.append(registry.offer("faulty", make))
        return Subject("faulty", lacks=IN_MEMORY, lose=locks.lose)

    yield offered
    for end in ends:
        end()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_a_faulty_mechanism_breaks_the_claim_about_its_fault(fault, face, subject, tmp_path):
    case = next(c for c in cases(subject(fault), [face]) if c.claim.name == FAULTS[fault])
    with pytest.raises(Exception) as caught:  # noqa: PT011
        case.run(tmp_path)
    assert not isinstance(caught.value, (AttributeError, TypeError, NameError))


def test_a_token_that_repeats_after_a_loss_breaks_the_claim_about_it(subject, tmp_path):
    faulty = subject(CountsAnewAfterALoss)

    def lose(path):
        CountsAnewAfterALoss.counts.clear()
        faulty.lose(path)

    robbed = dataclasses.replace(faulty, lose=lose)
    case = next(c for c in cases(robbed, ["blocking"]) if "after_a_loss" in str(c))
    with pytest.raises(ClaimBroken, match="1 after the lost 1"):
        case.run(tmp_path)


def test_readers_that_pass_a_waiting_writer_break_the_claim_about_it(tmp_path, monkeypatch):
    """flock(2) alone does that."""
    monkeypatch.setattr(exclusion, "ROUNDS", 50)
    unfair = Subject("kernel", shape="readwrite")
    case = next(c for c in cases(unfair, ["blocking"]) if "keep_no_writer_out" in str(c))
    with pytest.raises(ClaimBroken, match="50 readers passed"):
        case.run(tmp_path)


def test_a_report_names_what_is_broken_and_what_is_not_applicable(subject):
    results = check(subject(RepeatsItsNonce), faces=["blocking"])
    broken = {result.case.claim.name for result in results if result.verdict == "broken"}
    assert broken >= {"no_nonce_is_used_twice", "workers_are_never_inside_together"}
    text = report(results)
    assert "broken: faulty-blocking-no_nonce_is_used_twice" in text
    assert "not applicable to faulty (processes: one process)" in text
    assert text.splitlines()[-1].endswith("not applicable")


@pytest.mark.parametrize("paused", [0.0, 1.0])
def test_a_timed_claim_that_a_pause_broke_is_played_again_and_no_other_is(
    tmp_path, paused, monkeypatch
):
    plays = []

    async def broken_at_first(stage):
        plays.append(stage.target)
        if len(plays) == 1:
            raise ClaimBroken("too late")

    @contextmanager
    def pauses():
        yield lambda: paused

    monkeypatch.setattr(conformance, "pauses", pauses)
    case = Case(Subject("kernel"), "blocking", Claim("timed", (), broken_at_first, timed=True))
    if paused:
        case.run(tmp_path)
        assert len(set(plays)) == 2
    else:
        with pytest.raises(ClaimBroken):
            case.run(tmp_path)


def test_a_pause_of_this_process_is_seen():
    with pauses() as longest:
        sys.setswitchinterval(0.2)
        try:
            end = time.monotonic() + 0.15
            while time.monotonic() < end:
                pass
        finally:
            sys.setswitchinterval(0.005)
        until(lambda: longest() > 0.05)  # each pause is seen when it is over


def test_a_kind_that_lacks_something_must_say_why():
    with pytest.raises(ValueError, match="reasons"):
        Subject("kernel", lacks={"token": ""})
    with pytest.raises(ValueError, match="reasons"):
        Subject("kernel", lacks={"wings": "none"})


def test_a_shape_of_which_no_claim_speaks_is_refused():
    with pytest.raises(ValueError, match="semaphor'"):
        Subject("kernel", shape="semaphor")


def test_every_capability_is_asked_for_by_some_claim():
    asked = {need for case in cases(Subject("kernel")) for need in case.claim.needs}
    assert asked == set(CAPABILITIES)
