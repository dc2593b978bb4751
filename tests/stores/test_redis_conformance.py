"""Every claim of the conformance suite about leases in Redis, under every face."""

from __future__ import annotations

import pytest

from ground import needs
from lifehold import connect
from lifehold.testing.conformance import Subject, cases

pytestmark = needs("redis")
server = {}  # the URL, once it is up


def in_redis(folder):
    return f"{server['url']}#{str(folder).strip('/')}"


def lose(url):
    where, _, name = url.partition("#")
    connect(where).break_(name, "to see who is told")


def by_url(subject, face, target, options):
    return face.lock(target, **{**subject.options, **options})


REDIS = Subject(
    "auto", name="Redis", remote=True, target=in_redis, lose=lose, make=by_url,
    lacks={
        "survives_crash": "its lease runs out: test_redis_faults.py waits for that",
        "shared": "readers share by read_write(), not by exclusive=False",
        "lose": "check() asks no store: verify() does",
    },
)  # fmt: skip


@pytest.mark.parametrize("case", cases(REDIS, lacking=False), ids=str)
def test_redis_keeps_the_claim(case, tmp_path, redis_server):
    server["url"] = redis_server.url
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
