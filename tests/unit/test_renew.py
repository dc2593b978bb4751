"""The renewal of a lease, under the virtual clock: what counts, what does not, what is told."""

from __future__ import annotations

import math

import pytest

from lifehold import InvalidArgument
from lifehold.core import events
from lifehold.core.deadline import NEVER, Terms, terms
from lifehold.core.grant import Grant, Lost, Unknown
from lifehold.core.renew import RenewalSchedule, beat, keep
from lifehold.core.value import replace
from lifehold.runtime.blocking import finish
from lifehold.testing.clock import VirtualRuntime
from lifehold.testing.stage import heard

TTL = terms(30)


class Storage:
    """Renews, after `takes` seconds; `answer` instead of a grant."""

    def __init__(self, time):
        self.time, self.takes, self.answer, self.asked = time, 0.0, None, []

    async def renew(self, grant):
        sent_at = self.time.now()
        self.asked.append(sent_at)
        await self.time.sleep(self.takes)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or replace(grant, deadline=TTL.deadline(sent_at))


@pytest.fixture
def time():
    return VirtualRuntime(1000.0)


@pytest.fixture
def storage(time):
    return Storage(time)


@pytest.fixture
def lost():
    return []


@pytest.fixture
def tenure(time, lost):
    grant = Grant("n", "mark", 1, None, 0, "n", [object()], TTL.deadline(time.now()))
    return RenewalSchedule(grant, TTL, lost.append)


def test_the_defaults_are_a_third_and_a_tenth():
    assert terms(30) == Terms(30.0, 10.0, 3.0)
    assert terms(1).margin == 0.25
    assert terms(None) is None


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"ttl": 0}, "more than 0"),
        ({"ttl": -1}, "more than 0"),
        ({"ttl": math.nan}, "finite"),
        ({"ttl": math.inf}, "finite"),
        ({"ttl": True}, "bool"),
        ({"ttl": "30"}, "str"),
        ({"ttl": 30, "heartbeat": 11}, "3 heartbeats"),
        ({"ttl": 30, "margin": 30}, "leaves nothing"),
        ({"ttl": 30, "heartbeat": 0}, "heartbeat must be more than 0"),
        ({"ttl": 0.2}, "leaves nothing"),
        ({"ttl": 0.3}, "before the first heartbeat"),
        ({"ttl": None, "margin": 1}, "give ttl="),
    ],
)
def test_terms_that_cannot_be_kept_are_refused_in_words(given, word):
    with pytest.raises(InvalidArgument, match=word):
        terms(**given)


@pytest.mark.parametrize("given", [{"ttl": 30, "heartbeat": 11}, {"ttl": 30, "margin": 40}])
def test_the_remedy_that_a_refusal_names_is_accepted(given):
    with pytest.raises(InvalidArgument) as caught:
        terms(**given)
    words = [word.strip(".,:") for word in str(caught.value).split()]
    ttl = [float(word[4:]) for word in words if word.startswith("ttl=")][-1]
    assert terms(**{**given, "ttl": ttl})


def test_a_lease_that_is_renewed_in_time_goes_on(time, storage, tenure, lost):
    time.after(100, lambda: setattr(tenure, "over", True))
    finish(keep(storage, time, tenure))
    assert storage.asked == [1000 + 10 * n for n in range(1, 10)]
    assert tenure.renewals == 9
    assert tenure.deadline == 1090 + 27
    assert not lost


def test_the_deadline_counts_from_the_sending(time, storage, tenure):
    storage.takes = 5.0
    at = finish(beat(storage, time, tenure))
    assert (at, tenure.deadline) == (1010.0, 1027.0)


def test_a_renewal_that_lands_after_the_old_deadline_does_not_count(time, storage, tenure, lost):
    storage.takes = 27.5
    assert finish(beat(storage, time, tenure)) == NEVER
    assert tenure.over
    assert len(lost) == 1
    assert "30 s" in lost[0]
    assert tenure.deadline == 1027.0


def test_after_the_deadline_the_storage_is_not_even_asked(time, storage, tenure, lost):
    finish(time.sleep(27))
    assert finish(beat(storage, time, tenure)) == NEVER
    assert lost
    assert not storage.asked


def test_a_storage_that_fails_is_asked_again_until_the_deadline(time, storage, tenure, lost):
    storage.answer = OSError(5, "disk")
    with heard() as told:
        finish(keep(storage, time, tenure))
    assert time.now() == 1027.0
    assert len(lost) == 1
    assert storage.asked[0] == 1010.0
    assert len(storage.asked) == 7
    assert [type(event) for event in told] == [events.Suspended]


def test_a_storage_that_comes_back_is_told_by_the_next_renewal(time, storage, tenure, lost):
    storage.answer = Unknown("mark-1", OSError(5, "disk"))
    with heard() as told:
        at = finish(beat(storage, time, tenure))
        assert at == 1002.5
        assert tenure.suspended
        storage.answer = None
        finish(time.sleep(2.5))
        assert finish(beat(storage, time, tenure)) == 1012.5
    assert not tenure.suspended
    assert not lost
    assert [type(event) for event in told] == [events.Suspended, events.Renewed]


def test_what_the_storage_calls_lost_is_lost(time, storage, tenure, lost):
    storage.answer = Lost("replaced by another", gone=True)
    assert finish(beat(storage, time, tenure)) == NEVER
    assert lost == ["replaced by another"]
    assert tenure.reason == "replaced by another"


def test_a_lease_that_was_released_meanwhile_is_not_lost(time, storage, tenure, lost):
    storage.answer = Lost("released already")
    assert finish(beat(storage, time, tenure)) == NEVER
    assert tenure.over
    assert not lost
    assert tenure.reason is None
    assert finish(beat(storage, time, tenure)) == NEVER
    assert len(storage.asked) == 1
