"""Values: frozen, slotted, tuple-backed records."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lifehold.core import events
from lifehold.core.grant import Grant, Held, Holder, Lost, Unknown
from lifehold.core.owner import LifeVerdict, Owner, Sighting
from lifehold.core.value import as_dict, replace, value
from lifehold.local.ground import MountInfo
from lifehold.local.record import Record


@value
class Point:
    """A point."""

    x: int
    y: int = 2

    @property
    def sum(self) -> int:
        return self.x + self.y


@value
class Spot:
    """Same content, another class."""

    x: int
    y: int = 2


def test_a_value_cannot_be_changed():
    point = Point(1)
    for change in (lambda: setattr(point, "x", 5), lambda: setattr(point, "z", 5),
                   lambda: delattr(point, "x"), lambda: point.__setitem__(0, 5)):  # fmt: skip
        with pytest.raises((AttributeError, TypeError)):
            change()
    assert not hasattr(point, "__dict__")
    assert (point.x, point.y, point.sum) == (1, 2, 3)


def test_arguments_are_checked_like_those_of_a_function():
    assert Point(1, 5) == Point(y=5, x=1)
    for wrong in (Point, lambda: Point(1, 2, 3), lambda: Point(1, z=3)):
        with pytest.raises(TypeError, match=r"Point\.__new__"):
            wrong()
    assert list(inspect.signature(Point).parameters) in (["x", "y"], ["cls", "x", "y"])


@given(some.integers(), some.integers())
def test_values_are_equal_by_class_and_content(a, b):
    assert Point(a, b) == Point(a, b)
    assert hash(Point(a, b)) == hash(Point(a, b))
    assert Point(a, b) != Spot(a, b)
    assert Point(a, b) != (a, b)
    assert (Point(a, b) == Point(b, a)) == (a == b)


def test_even_a_value_of_nothing_is_true():
    assert Held()
    assert Lost("")


def test_a_value_can_be_matched_by_field():
    match Point(1, 7):
        case Point(x=1, y=seven):
            assert seven == 7
    match Lost("why", gone=True):
        case Held():
            raise AssertionError("matched another class")
        case Lost(reason, gone):
            assert (reason, gone) == ("why", True)


def test_a_value_shows_its_fields_and_keeps_its_doc():
    assert repr(Point(1)) == "Point(x=1, y=2)"
    assert Point.__doc__ == "A point."
    assert Point.x.__doc__.startswith("Field 0: x")


def test_replace_makes_a_copy_and_as_dict_names_the_fields():
    point = Point(1)
    assert replace(point, x=9) == Point(9, 2)
    assert point == Point(1)
    assert as_dict(point) == {"x": 1, "y": 2}
    with pytest.raises(TypeError):
        replace(point, z=1)


EXAMPLES = [
    Held("no", (1, 2)),
    Lost("gone", True),
    Unknown("ab", OSError(5, "io")),
    Owner(1),
    Owner(1, "h"),
    Sighting(True),
    LifeVerdict("dead", "why"),
    MountInfo("ext4", "8:1"),
    Record(1, "n", 1.0, Owner(1), False),
    Grant("n", "no", 1, None, 5, (1, 2), []),
    Holder(Owner(3), 1.0, "alive", "e", 1, "n", "l"),
    events.Waiting("n", 1.0, None),
    events.Acquired("n", "no", None, 0.0),
    events.Renewed("n", "o", 1),
    events.Suspended("n", "o", 1.0),
    events.Lost("n", "o", "r"),
    events.Released("n", "o", 1.0),
    events.HandedOver("n", "o"),
    events.TakenOver("n", "o", None, "e"),
    events.Broken("n", None, "r"),
    events.Cleared("n", None, "e"),
    events.Skipped("n", None, 1.0),
    events.InDoubt("n", "o"),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: type(e).__name__)
def test_every_value_of_the_core_survives_copy_and_pickle(example):
    for again in (pickle.loads(pickle.dumps(example)), copy.copy(example)):
        assert type(again) is type(example)
        assert repr(again) == repr(example)
    assert eval(repr(example).partition("(")[0], {type(example).__name__: type(example)})


def test_every_event_is_among_the_examples():
    assert set(events.Event.__args__) <= {type(example) for example in EXAMPLES}


@pytest.mark.parametrize("count", [1, 2, 13, 14, 15, 30])
def test_a_constructor_has_the_fields_as_its_parameters_however_many(count):
    names = [f"field_{number}" for number in range(count)]
    body = {"__annotations__": dict.fromkeys(names, "int"), names[-1]: 7}
    made = value(type("Wide", (), body))
    assert made(*range(count - 1)) == made(**{n: at for at, n in enumerate(names[:-1])})
    assert made(*range(count)) == tuple.__new__(made, range(count))
    assert list(inspect.signature(made).parameters)[-count:] == names
    with pytest.raises(TypeError, match=r"Wide\.__new__"):
        made(*range(count + 1))


def test_a_field_without_a_default_behind_one_that_has_one_is_refused():
    with pytest.raises(TypeError, match="without a default"):
        value(type("Wrong", (), {"__annotations__": {"a": "int", "b": "int"}, "a": 1}))
