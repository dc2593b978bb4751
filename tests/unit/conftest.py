"""One private PostgreSQL for the whole run of this folder."""

from __future__ import annotations

import pytest

from ground import require


@pytest.fixture(scope="session")
def postgres():
    """The URL of a database of our own."""
    require("postgres")
    from servers import postgres

    with postgres.started() as server:
        yield server.url
