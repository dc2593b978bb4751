"""The command and kind="session": run, who, ls, wait, clear."""

from __future__ import annotations

import json
import subprocess
import sys

import psycopg
import pytest

from ground import needs
from lifehold import InvalidArgument, LeaseLost, Lock, connect
from patience import SOON

pytestmark = needs("postgres")


@pytest.fixture
def lifehold(pg_url):
    """The command, on the store of the test."""

    def call(verb, *words, store=pg_url):
        return subprocess.run(
            [sys.executable, "-m", "lifehold", verb, "--store", store, *words],
            capture_output=True, text=True, timeout=4 * SOON, check=False,
        )  # fmt: skip

    return call


def test_a_run_holds_it_and_its_command_finds_the_token(lifehold, pg_url):
    ask = "import os; print(os.environ['LIFEHOLD_TOKEN'])"
    done = lifehold("run", "--kind", "session", "migrate", "--", sys.executable, "-c", ask)
    assert done.returncode == 0, done.stderr
    with connect(pg_url).lock("migrate", kind="session", wait=0) as lease:
        assert lease.token > int(done.stdout)


def test_a_run_is_refused_by_whoever_holds_it_and_says_how_to_wait(lifehold, pg_url):
    with connect(pg_url).lock("migrate", kind="session", wait=0, label="deploy"):
        done = lifehold("run", "-n", "--kind", "session", "migrate", "--", "true")
        assert done.returncode == 75
        assert "label deploy" in done.stderr
        assert "lifehold run --wait 1h --kind session '" in done.stderr
        assert lifehold("wait", "-w", "0", "migrate").returncode == 75
    assert lifehold("wait", "-w", "0", "migrate").returncode == 0


def test_who_and_ls_name_ours_and_those_of_other_tools(lifehold, pg_url):
    with (
        connect(pg_url).lock("migrate", kind="session", wait=0) as lease,
        psycopg.connect(pg_url, autocommit=True, application_name="their tool") as theirs,
    ):
        theirs.execute("SELECT pg_advisory_lock(1, 2), pg_advisory_lock(4711)")
        (found,) = json.loads(lifehold("who", "--json", "migrate").stdout)["locks"]
        assert found["kind"] == "session"
        assert found["holder"]["nonce"] == lease.nonce
        (found,) = json.loads(lifehold("who", "--json", "key:1,2").stdout)["locks"]
        assert found["holder"]["owner"]["pid"] == theirs.info.backend_pid
        assert "their tool" in lifehold("who", "key:4711").stdout
        listed = lifehold("ls").stdout
        for name in ("#migrate ", "#key:1,2 ", "#key:4711 "):
            assert name in listed
    assert lifehold("who", "migrate").returncode == 1


def test_clear_ends_a_session_only_by_the_word_of_its_holder(lifehold, pg_url):
    lease = connect(pg_url).lock("stuck", kind="session", wait=0).acquire()
    with psycopg.connect(pg_url, autocommit=True) as theirs:
        theirs.execute("SELECT pg_advisory_lock(4711)")
        for name in ("stuck", "key:4711"):
            assert "its session is open" in lifehold("clear", name).stdout
        theirs.execute("SELECT 1")
        lease.check()
        word = str(theirs.info.backend_pid)
        assert lifehold("clear", "--force", word, "key:4711").returncode == 0
        with pytest.raises(psycopg.errors.AdminShutdown):
            theirs.execute("SELECT 1")
    assert lifehold("clear", "--force", lease.nonce[:8], "stuck").returncode == 0
    with pytest.raises(LeaseLost):
        lease.release()


def test_another_store_says_that_it_has_none(lifehold, tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    done = lifehold("run", "--kind", "session", "x", "--", "true", store=url)
    assert done.returncode == 64
    assert "a lock of PostgreSQL" in done.stderr
    with pytest.raises(InvalidArgument, match="name it by a URL"):
        Lock(tmp_path / "x", kind="session")
