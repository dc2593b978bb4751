"""`lifehold store migrate` and `check`, over a real server and over files."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import jsonschema
import pytest

from ground import needs
from lifehold import connect
from lifehold.cli.main import main
from lifehold.ops import stored
from lifehold.store.postgres.sql import VERSION

STORES = Path(__file__).parents[1] / "stores"
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/store.schema.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def server():
    from servers import postgres

    with postgres.started() as one:
        yield one


@pytest.fixture
def fresh(server):
    server.execute("DROP DATABASE IF EXISTS fresh WITH (FORCE)", "postgres")
    server.execute("CREATE DATABASE fresh STRATEGY file_copy", "postgres")
    return server.at("fresh")


def answer(done):
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    return found


def verdicts(found):
    return {each["what"]: each["verdict"] for each in found["findings"]}


@pytest.mark.parametrize("words", [["migrate"], ["check"], ["prune", "--older-than", "60s"]])
def test_a_store_that_gives_no_answer_is_told_in_json_too(lifehold, words):
    done = lifehold("store", *words, "--json", "postgresql://ana:s3cret@127.0.0.1:1/db")
    found = answer(done)
    assert done.returncode == 69
    assert "start the server" in found["error"]
    assert "s3cret" not in done.stdout + done.stderr


@needs("postgres")
def test_check_says_what_lacks_and_the_command_that_it_prints_makes_it(lifehold, fresh):
    before = lifehold("store", "check", fresh)
    assert before.returncode == 1
    assert "leases cannot be kept there" in before.stdout
    _, _, command = before.stdout.partition("This makes them: lifehold ")
    made = lifehold(*shlex.split(command), env={"PGUSER": "lifehold"})
    assert (made.returncode, f"are there now, of version {VERSION}" in made.stdout) == (0, True)
    again = answer(lifehold("store", "migrate", "--json", fresh))
    assert (again["before"], again["after"]) == (VERSION, VERSION)
    after = lifehold("store", "check", "--json", fresh)
    assert after.returncode == 0
    found = answer(after)
    assert found["ready"]
    assert verdicts(found)["leases"] == verdicts(found)["waking"] == "good"
    assert "one primary decides" in found["sentences"][0]


@needs("postgres")
def test_check_leaves_nothing_behind_and_disturbs_no_holder(lifehold, fresh, server):
    with connect(fresh).lock("job", wait=0) as lease:
        assert lifehold("store", "check", fresh).returncode == 0
        lease.verify()
    names = server.execute("SELECT name FROM lifehold_lease", "fresh")
    assert names == [("job",)]
    assert server.execute("SELECT count(*) FROM lifehold_audit", "fresh") == [(0,)]


@needs("postgres")
def test_the_first_look_at_a_server_without_tables_makes_them_and_says_so(lifehold, fresh):
    """The one look that writes, as the page of looking says; the release to come ends it."""
    done = lifehold("who", f"{fresh}#job")
    assert done.returncode == 1, done.stderr
    assert "the tables of lifehold were not there and were made" in done.stderr
    assert lifehold("who", f"{fresh}#job").stderr == ""


@needs("postgres", "command:psql")
def test_the_sql_that_is_printed_can_be_run_by_psql_twice(lifehold, fresh, server):
    sql = lifehold("store", "migrate", "--sql").stdout
    for _ in range(2):
        subprocess.run(
            ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", fresh], input=sql, text=True,
            check=True, capture_output=True, timeout=150,
        )  # fmt: skip
    with connect(fresh, create=False).lock("job", wait=0) as lease:
        assert lease.token


@needs("postgres")
def test_tables_in_two_schemas_are_told_since_their_locks_do_not_exclude(lifehold, fresh, server):
    lifehold("store", "migrate", fresh)
    server.execute("CREATE SCHEMA apart", "fresh")
    apart = f"{fresh}?options=-csearch_path%3Dapart"
    hidden = lifehold("store", "check", apart)
    assert hidden.returncode == 1
    assert "there are some in schema public" in hidden.stdout
    assert "options=-csearch_path%3Dapart" in hidden.stdout
    assert lifehold("store", "migrate", apart).returncode == 0
    both = lifehold("store", "check", "--json", fresh)
    assert verdicts(answer(both))["tables"] == "note"
    assert "has other locks" in both.stdout


@needs("postgres")
def test_tables_of_an_earlier_version_can_be_used_and_are_brought_up(lifehold, fresh, server):
    server.execute((STORES / "postgres_schema_1.sql").read_text(), "fresh")
    found = answer(lifehold("store", "check", "--json", fresh))
    assert (found["version"], found["ready"]) == (1, True)
    assert verdicts(found)["tables"] == "note"
    assert "lifehold store migrate" in str(found["findings"])
    made = answer(lifehold("store", "migrate", "--json", fresh))
    assert (made["before"], made["after"]) == (1, VERSION)
    assert verdicts(answer(lifehold("store", "check", "--json", fresh)))["tables"] == "good"


@needs("postgres")
def test_a_schema_of_a_later_version_is_left_alone(lifehold, fresh, server):
    lifehold("store", "migrate", fresh)
    server.execute("UPDATE lifehold_schema SET version = 9, least = 9", "fresh")
    assert lifehold("store", "check", fresh).returncode == 1
    done = lifehold("store", "migrate", fresh)
    assert done.returncode == 69
    assert "use a newer lifehold" in done.stderr


@needs("postgres")
def test_a_replica_is_told_so(lifehold, server, tmp_path):
    from servers import postgres

    copy = server.standby(server.home.with_name(server.home.name + "-replica"))
    try:
        done = lifehold("store", "check", copy.url)
        assert "a replica that only reads" in done.stdout
        assert done.returncode == 1
        refused = lifehold("store", "migrate", copy.url)
        assert refused.returncode == 69
        assert "name the primary" in refused.stderr
    finally:
        postgres.remove(copy)


def test_a_file_is_made_and_checked_without_being_changed(lifehold, tmp_path):
    url = f"sqlite:///{tmp_path}/locks.db"
    assert "is not there yet" in lifehold("store", "check", url).stdout
    assert not (tmp_path / "locks.db").exists()
    made = answer(lifehold("store", "migrate", "--json", url))
    assert (made["before"], made["after"]) == (0, 1)
    assert answer(lifehold("store", "migrate", url, "--json"))["before"] == 1
    found = answer(lifehold("store", "check", "--json", url))
    assert (found["ready"], found["version"]) == (True, 1)
    assert connect(url).list() == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["mend", "sqlite:///x.db"], 64, "migrate, check or prune, not 'mend'"),
        (["check"], 64, "URL is missing"),
        (["migrate"], 64, "URL is missing"),
        (["check", "--sql", "sqlite:///x.db"], 64, "are for migrate"),
        (["migrate", "--sql", "--json"], 64, "choose one"),
        (["migrate", "locks.db"], 64, "by its URL"),
        (["migrate", "sqlite:///x.db#job"], 64, "by its URL"),
        (["check", "memory://"], 64, "needs no upkeep"),
        (["migrate", "--grant", "app", "sqlite:///x.db"], 64, "an owner and a mode"),
        (["migrate", "--grant", "", "--sql"], 0, ""),
        (["check", "nosuch://x"], 64, "no store for 'nosuch'"),
        (["check", "postgresql://ana:s3cret@127.0.0.1:1/db"], 69, "start the server"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(words, status, said, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["store", *words]) == status
    told = capfd.readouterr()
    assert said in told.err
    assert "s3cret" not in told.err + told.out
    assert list(tmp_path.iterdir()) == []


@needs("postgres", "pgbouncer")
def test_what_is_printed_runs_as_it_stands_and_no_password_is_handed_on(lifehold, fresh, server):
    """The user stays in every address, the password comes from elsewhere: here none is asked."""
    secret = "s3cret-%2F-word"
    url = fresh.replace("lifehold@", f"lifehold:{secret}@")
    stored.migrate(fresh)
    look = 'echo "$LIFEHOLD_NAME $LIFEHOLD_LOCK"; env; exec "$0" -m lifehold check'
    for words in (["--store", url, "nightly"], [f"{url}#nightly"]):
        done = lifehold("run", *words, "--", "sh", "-c", look, sys.executable)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{fresh}#nightly {fresh}#nightly\n")
        assert "s3cret" not in done.stdout + done.stderr
        once = lifehold("once", *words, "--", "sh", "-c", 'echo "$LIFEHOLD_NAME"')
        assert once.stdout == f"{fresh}#nightly\n"
    with connect(fresh).lock("nightly", wait=0):
        held = lifehold("run", "-n", f"{url}#nightly", "--", "true")
        assert held.returncode == 75
        assert "s3cret" not in held.stderr
        _, _, remedy = held.stderr.partition("look:  lifehold ")
        looked = lifehold(*shlex.split(remedy.partition("\n")[0]))
        assert looked.returncode == 0, looked.stderr


@needs("postgres")
def test_a_database_that_only_reads_is_no_replica(lifehold, fresh, server):
    server.execute("ALTER DATABASE fresh SET default_transaction_read_only = on", "postgres")
    told = lifehold("run", f"{fresh}#x", "--", "true")
    assert told.returncode == 69
    assert "default_transaction_read_only" in told.stderr
    checked = lifehold("store", "check", fresh)
    assert checked.returncode == 1
    assert "a primary whose transactions only read" in checked.stdout


@needs("postgres")
def test_of_several_migrations_at_once_one_says_that_it_made_the_tables(fresh):
    came = []
    threads = [
        threading.Thread(target=lambda: came.append(stored.migrate(fresh))) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(each.before for each in came) == [0, VERSION, VERSION, VERSION]
    assert {each.after for each in came} == {VERSION}
