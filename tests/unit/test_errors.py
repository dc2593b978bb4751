"""The tree of errors: codes, facts, pickling."""

from __future__ import annotations

import errno
import pickle

import pytest

import lifehold
from lifehold import (
    InvalidArgument,
    LifeholdError,
    NotAcquired,
    StaleToken,
    SystemRefused,
    Timeout,
    WouldBlock,
)
from lifehold.core.grant import Holder
from lifehold.core.owner import Owner

ALL = [
    thing
    for name in lifehold.__all__
    if isinstance(thing := getattr(lifehold, name), type) and issubclass(thing, LifeholdError)
]
PARENTS = {
    "WouldBlock": NotAcquired, "Timeout": NotAcquired, "AcquireCancelled": NotAcquired,
    "SelfDeadlock": NotAcquired,
}  # fmt: skip
ALSO = {
    "Timeout": TimeoutError, "InvalidArgument": ValueError, "SystemRefused": OSError,
    "SelfDeadlock": RuntimeError,
}  # fmt: skip


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_stands_in_the_tree_with_a_code(kind):
    assert issubclass(kind, PARENTS.get(kind.__name__, LifeholdError))
    assert issubclass(kind, ALSO.get(kind.__name__, Exception))
    assert kind.code.replace("_", "").isalpha()
    assert kind.code.islower()
    assert kind.__doc__


def test_no_two_errors_share_a_code():
    assert len({kind.code for kind in ALL}) == len(ALL) == 15


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling_with_its_facts(kind):
    holder = Holder(Owner(1, "web-3", label="ü"), 1.5, "alive", "witness", 7, "ab", "x.lock")
    facts = {"name": "x", "holder": holder, "waited": 1.5, "evidence": "witness", "token": 3}
    error = kind("what happened", **facts)
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == again.text == "what happened"
    assert {key: getattr(again, key) for key in facts} == facts
    assert again.__notes__ == ["a note"]


def test_a_refusal_of_the_system_is_an_oserror_with_errno_and_filename():
    error = SystemRefused("no: free some", errno=errno.ENOSPC, filename="/var/x", name="/var/x")
    again = pickle.loads(pickle.dumps(error))
    for each in (error, again):
        assert (each.errno, each.filename, each.name) == (errno.ENOSPC, "/var/x", "/var/x")
        assert str(each) == "no: free some"
        assert isinstance(each, OSError)


def test_facts_that_were_not_given_have_defaults():
    error = WouldBlock("held")
    assert (error.name, error.holder, error.owner) == (None, None, None)
    assert (error.waited, error.evidence, error.code) == (0.0, "", "would_block")
    assert (StaleToken().token, StaleToken().fence, StaleToken().text) == (None, None, "")


def test_the_errors_are_caught_by_the_builtin_names_people_use():
    with pytest.raises(TimeoutError):
        raise Timeout("late")
    with pytest.raises(ValueError, match="bad"):
        raise InvalidArgument("bad")
