"""Every claim of the conformance suite about leases of three Redis servers, under every face."""

from __future__ import annotations

import pytest

from ground import needs
from lifehold import connect
from lifehold.testing.backends import StoreSubject
from lifehold.testing.backends import cases as store_cases
from lifehold.testing.conformance import Subject, cases
from servers import quorum as quorum_servers

pytestmark = needs("redis")
LONGEST = 86400  # seconds: the suites ask for long leases
url = {}  # of the quorum, once it is up


@pytest.fixture(scope="module")
def quorum():
    """Three servers that have been there for longer than any lease."""
    with quorum_servers.started(3) as servers:
        store = quorum_servers.long_ago(servers, longest_ttl=LONGEST)
        url["url"] = store.url
        yield store
        store.close()


def in_quorum(folder):
    return f"{url['url']}#{str(folder).strip('/')}"


def lose(target):
    where, _, name = target.partition("#")
    connect(where).break_(name, "to see who is told")


def by_url(subject, face, target, options):
    return face.lock(target, **{**subject.options, **options})


QUORUM = Subject(
    "auto", name="quorum", remote=True, target=in_quorum, lose=lose, make=by_url,
    lacks={
        "survives_crash": "its lease runs out: test_quorum.py waits for that",
        "shared": "a quorum gives a name to one holder",
        "lose": "check() asks no store: verify() does",
    },
)  # fmt: skip


@pytest.mark.parametrize("case", cases(QUORUM, lacking=False), ids=str)
def test_a_quorum_keeps_the_claim(case, tmp_path, quorum):
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)


STORE = StoreSubject("quorum", lambda: connect(url["url"])._site)


@pytest.mark.parametrize("case", store_cases(STORE), ids=str)
def test_a_quorum_keeps_the_rules(case, quorum):
    if why := case.why_not():
        pytest.skip(why)
    case.run()
