"""The command on locks in a store: by URL#NAME and by --store URL."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing

import pytest

from lifehold import connect
from lifehold.recipes.once_results import StoreResults


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/locks.db"


def test_run_holds_a_lease_and_cmd_can_check_it(lifehold, url):
    inner = '"$1" -m lifehold check && echo $LIFEHOLD_TOKEN && "$1" -m lifehold who --json "$0#job"'
    done = lifehold("run", "--store", url, "job", "--", "sh", "-c", inner, url, sys.executable)
    assert done.returncode == 0, done.stderr
    token, _, told = done.stdout.partition("\n")
    (lock,) = json.loads(told)["locks"]
    assert lock["state"] == "held"
    assert lock["holder"]["token"] == int(token)
    assert lifehold("who", f"{url}#job").returncode == 1
    unknown = lifehold("who", f"{url}#other")
    assert f"'{url}#other' is free: its store knows no such name\n" in unknown.stdout


def test_a_held_one_is_refused_with_75_and_names_the_holder(lifehold, url):
    with connect(url).lock("job"):
        done = lifehold("run", "-n", f"{url}#job", "--", "true")
        assert done.returncode == 75
        assert "it is held" in done.stderr
        assert "its lease has" in done.stderr
        assert lifehold("wait", "-w", "0.1", f"{url}#job").returncode == 75
        listed = lifehold("ls", "--held", "--names", url).stdout
        assert listed == f"{url}#job\n"
        assert (
            f"{url}#job" in lifehold("top", "--once", "--store", url, env={"COLUMNS": "300"}).stdout
        )
    assert lifehold("wait", f"{url}#job").returncode == 0


def test_a_killed_run_stops_cmd_and_leaves_the_lock_to_the_next(lifehold, url):
    words = ("--store", url, "job", "--", "sh", "-c", "echo up; sleep 60")
    victim = lifehold.start("run", "--ttl", "20", *words)
    assert victim.stdout.readline() == "up\n"
    victim.kill()
    victim.wait()
    asked = lifehold("who", f"{url}#job")
    assert asked.returncode == 3
    assert "' is stale" in asked.stdout
    assert "whoever asks next gets it" in lifehold("clear", f"{url}#job").stdout
    done = lifehold("run", "-w", "60", "--store", url, "job", "--", "echo", "next")
    assert done.stdout == "next\n"
    told = lifehold("log", "--json", f"{url}#job")
    events = [entry["event"] for entry in json.loads(told.stdout)["entries"]]
    assert events == ["takeover", "hold"]


def test_clear_breaks_a_live_lease_only_by_its_word(lifehold, url):
    store = connect(url)
    lease = store.lock("job").acquire()
    kept = lifehold("clear", f"{url}#job")
    assert kept.returncode == 0
    assert "a lease ends by itself" in kept.stdout
    word = lease.nonce[:8]
    assert f"--force {word}" in kept.stdout
    assert "not of the grant" in lifehold("clear", "--force", "00000000", f"{url}#job").stdout
    assert "removed" in lifehold("clear", "--force", word, f"{url}#job").stdout
    assert store.inspect("job") is None
    with pytest.raises(Exception, match="let it go"):
        lease.release()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--store", "locks.db", "job", "true"], "takes the URL of a store"),
        (["run", "--store", "sqlite:///x.db#a", "job", "true"], "takes the URL of a store"),
        (["run", "--store", "sqlite:///x.db", "--kind", "soft", "job", "true"], "cannot both be"),
        (["run", "--store", "sqlite:///x.db", "-F", "job", "true"], "cannot both be"),
        (["run", "sqlite:///x.db", "true"], "put the name behind a #"),
        (["run", "memory://#job", "true"], "of one process"),
        (["run", "nosuch://x#job", "true"], "there is no store for 'nosuch'"),
        (["who", "--store", "sqlite:///x.db", "sqlite:///x.db#a"], "by its NAME alone"),
    ],
)
def test_what_cannot_be_is_refused_by_name(lifehold, words, said):
    done = lifehold(*words)
    assert done.returncode == 64
    assert said in done.stderr


def test_once_in_a_store_runs_once_and_gives_all_the_same_output(lifehold, url, tmp_path):
    script = f"echo ran >> {tmp_path}/runs; sleep 0.3; echo out; exit 3"
    words = ("once", "--keep-failure", "1h", "--store", url, "migrate", "--", "sh", "-c", script)
    runs = [lifehold.start(*words) for _ in range(4)]
    ends = [(run.communicate(timeout=60)[0], run.returncode) for run in runs]
    assert ends == [("out\n", 3)] * 4
    assert (tmp_path / "runs").read_text() == "ran\n"
    assert lifehold("once", "--forget", f"{url}#migrate").returncode == 0
    assert lifehold("once", "--store", url, "migrate", "--", "echo", "anew").stdout == "anew\n"


def test_an_output_too_large_for_a_store_is_cut_for_the_others_who_are_told(
    lifehold, url, tmp_path
):
    script = f"echo ran >> {tmp_path}/runs; head -c 2000000 /dev/zero; exit 3"
    words = ("once", "--keep-failure", "1h", "--json", f"{url}#big", "--", "sh", "-c", script)
    ran, *others = (lifehold(*words) for _ in range(3))
    assert len(ran.stdout) == 2_000_000
    assert [len(other.stdout) for other in others] == [StoreResults.most] * 2
    for done in (ran, *others):
        assert done.returncode == 3
        assert "2,000,000 bytes is too large to be kept in a store" in done.stderr
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_store_that_goes_away_stops_cmd_with_74(lifehold, tmp_path, url):
    """The lease cannot be renewed, so others may come in; that it cannot be released is told."""
    script = "echo up; sleep 60"
    run = lifehold.start("run", "--ttl", "3", "--store", url, "job", "--", "sh", "-c", script)
    assert run.stdout.readline() == "up\n"
    for name in tmp_path.glob("locks.db*"):
        if name.is_file():
            name.rename(name.with_name(f"gone-{name.name}"))
    (tmp_path / "locks.db").mkdir()
    assert run.wait(60) == 74
    assert "is lost" in run.stderr.read()


def test_a_name_with_a_percent_sign_is_shown_as_it_can_be_typed(lifehold, url):
    name = "100%41 #x"
    with connect(url).lock(name) as lease:
        assert lease.name == f"{url}#100%2541 #x"
        shown = lifehold("ls", "--held", "--names", url).stdout.strip()
        assert shown == lease.name
        assert lifehold("who", shown).returncode == 0
        assert lifehold("who", "--store", url, name).returncode == 0
    done = lifehold("who", f"{url}#%ff")
    assert done.returncode == 64
    assert "no UTF-8" in done.stderr


LOOKS = [
    (["who"], "#job", 1),
    (["ls", "--store"], "", 0),
    (["top", "--once", "--store"], "", 0),
    (["wait"], "#job", 0),
    (["clear"], "#job", 0),
    (["clear", "-n"], "#job", 0),
    (["store", "prune", "--older-than", "30d"], "", 0),
    (["store", "check"], "", 0),
]


@pytest.mark.parametrize("there", ["nothing", "an application's"])
def test_a_command_that_looks_leaves_the_folder_as_it_was(there, lifehold, tmp_path):
    path = tmp_path / ("app/l.db" if there == "nothing" else "l.db")
    if there != "nothing":
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE invoices (number INTEGER)")
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    for words, name, code in LOOKS:
        done = lifehold(*words, f"sqlite:///{path}{name}")
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before, words
