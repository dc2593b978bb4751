"""Every claim of the conformance suite about leases in PostgreSQL, under every face."""

from __future__ import annotations

import pytest

from ground import needs
from lifehold import connect
from lifehold.testing.conformance import Subject, cases

pytestmark = needs("postgres")
server = {}  # the URL, once it is up


def in_postgres(folder):
    return f"{server['url']}#{str(folder).strip('/')}"


def lose(url):
    where, _, name = url.partition("#")
    connect(where).break_(name, "to see who is told")


def by_url(subject, face, target, options):
    return face.lock(target, **{**subject.options, **options})


POSTGRES = Subject(
    "auto", name="PostgreSQL", remote=True, target=in_postgres, lose=lose, make=by_url,
    lacks={
        "survives_crash": "its lease runs out: test_postgres_faults.py waits for that",
        "shared": "readers share by read_write(), not by exclusive=False",
        "lose": "check() asks no store: verify() does",
    },
)  # fmt: skip


# Under trio a helper thread asks, over the blocking client: what ends a wait is what differs.
CASES = cases(POSTGRES, ("blocking", "asyncio"), lacking=False) + [
    case
    for case in cases(POSTGRES, ("trio",), lacking=False)
    if "cancel" in str(case) or "waiter" in str(case)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_postgres_keeps_the_claim(case, tmp_path, pg_server, monkeypatch):
    monkeypatch.setenv("PGUSER", "lifehold")  # a lock's name says nothing of who may open it
    server["url"] = pg_server.url.replace("lifehold@", "")
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
