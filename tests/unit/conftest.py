"""One private PostgreSQL for the whole run of this folder."""

from __future__ import annotations

import pytest

import private_postgres
from ground import require


@pytest.fixture(scope="session")
def postgres():
    """The connection string of a server of our own."""
    require("postgresql", "package:psycopg")
    yield from private_postgres.served()
