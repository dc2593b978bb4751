"""Every claim of the conformance suite about kind="session", under every face."""

from __future__ import annotations

import pytest

from ground import needs
from lifehold import connect
from lifehold.testing.conformance import Subject, cases

pytestmark = needs("postgres")
server = {}  # the URL, once it is up


def in_postgres(folder):
    return f"{server['url']}#session{str(folder).replace('/', '.')}"


def lose(url):
    where, _, name = url.partition("#")
    connect(where).lock(name, kind="session").break_("to see who is told")


SESSION = Subject(
    "session", name="session lock", remote=True, target=in_postgres, lose=lose,
    lacks={"shared": "it has one holder"},
)  # fmt: skip


# Under trio what waits is what differs.
CASES = cases(SESSION, ("blocking", "asyncio"), lacking=False) + [
    case
    for case in cases(SESSION, ("trio",), lacking=False)
    if "cancel" in str(case) or "waiter" in str(case)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_session_lock_keeps_the_claim(case, tmp_path, pg_server, monkeypatch):
    monkeypatch.setenv("PGUSER", "lifehold")  # a lock's name says nothing of who may open it
    server["url"] = pg_server.url.replace("lifehold@", "")
    if why := case.why_not():
        pytest.skip(why)
    case.run(tmp_path)
