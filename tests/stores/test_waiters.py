"""A long line at a store: two requests for each hand-over, in order, and nobody is left out."""

from __future__ import annotations

import pytest

from ground import require
from soak import waiters
from unsteady import Certain


@pytest.mark.timing("eight other busy processes, on two processors")
@pytest.mark.parametrize("store", ["postgres", "sqlite"])
def test_fifty_in_line_are_served_in_order_by_two_requests_each(store):
    """Of time are the order and the number of requests: who is late to renew stands behind."""
    require("linux", *(["postgres"] if store == "postgres" else []))
    wrong, figures = waiters.run(50, 0.0, 0.1, [store])
    if any(each.endswith((waiters.TWO, waiters.LEFT_OUT)) for each in wrong):
        raise Certain(figures)
    assert not wrong, figures


@pytest.mark.soak
@pytest.mark.parametrize("store", ["postgres", "sqlite"])
@pytest.mark.parametrize("hold", [0.0, 0.02])
def test_five_hundred_in_line_are_served_in_order(store, hold):
    require("linux", *(["postgres"] if store == "postgres" else []))
    wrong, figures = waiters.run(500, hold, 5.0, [store])
    print(figures)
    assert not wrong, figures
