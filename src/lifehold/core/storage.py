"""Old names only, of `core/backend.py` before 0.2: for stores of other packages, for one release.

What was `mark`, `bell`, `word` and `seats` is `nonce`, `wakeup`, `handoff_id` and `holders` there.
Whoever imports this module reads and gives the values by both names.
"""

from __future__ import annotations

from . import backend
from .backend import MOST, WHOLE, NoReply, Order, Unable, Unreachable, keeps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["MOST", "WHOLE", "NoReply", "Order", "Unable", "Unreachable", "keeps"]

RENAMED = {"mark": "nonce", "bell": "wakeup", "word": "handoff_id", "seats": "holders"}


class _Renamed(type):
    """A class that makes, and recognizes, the values of another one."""

    value: Any

    def __call__(cls, *given: Any, **named: Any) -> Any:
        return cls.value(*given, **{RENAMED.get(key, key): item for key, item in named.items()})

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.value)


def _of(value: Any) -> Any:
    """The class `value`, made with the old names too, whose values have these besides."""
    for old, new in RENAMED.items():
        if new in value.__match_args__:
            setattr(value, old, getattr(value, new))
    return _Renamed(value.__name__, (), {"value": value, "__match_args__": value.__match_args__})


Request, Seat = _of(backend.Request), _of(backend.StoreHolder)
Given, Refused = _of(backend.Given), _of(backend.Refused)
Renewal, State = _of(backend.Renewal), _of(backend.State)
