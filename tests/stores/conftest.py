"""Servers that the tests of this folder share: started with the first test that wants one."""

from __future__ import annotations

import itertools

import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def pg_server():
    """One PostgreSQL for all tests that leave it running."""
    from servers import postgres

    with postgres.started() as server:
        yield server


@pytest.fixture
def pg_url(pg_server):
    """A database of the test's own in it."""
    name = f"test_{next(_numbers)}"
    pg_server.execute(f"CREATE DATABASE {name} STRATEGY file_copy", "postgres")
    return pg_server.at(name)


@pytest.fixture(scope="session")
def redis_server():
    """One Redis for all tests that leave it running, and leave its settings as they were."""
    from servers import redis

    with redis.started() as server:
        yield server


@pytest.fixture
def redis_url(redis_server):
    """It, empty: no key and no script of another test."""
    redis_server.call("FLUSHALL")
    redis_server.call("SCRIPT", "FLUSH", "SYNC")
    return redis_server.url
