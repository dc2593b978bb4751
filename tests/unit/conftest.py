"""One private PostgreSQL for the whole run of this folder."""

from __future__ import annotations

import sys

import pytest

from ground import require


@pytest.fixture(autouse=True)
def nobody_is_expected():
    """The filelock face forgets who polled the files of the test before, and closes its watches."""
    yield
    pollers = sys.modules.get("lifehold.compat.filelock.pollers")
    if pollers is not None:
        for path in list(pollers.expected):
            pollers.forget(path)


@pytest.fixture(scope="session")
def postgres():
    """The URL of a database of our own."""
    require("postgres")
    from servers import postgres

    with postgres.started() as server:
        yield server.url
