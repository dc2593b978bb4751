"""The watch tells each thing once, clears by policy and on proof, and forgets what has ended."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ground import needs
from lifehold.core.errors import InvalidArgument, SystemRefused
from lifehold.core.grant import Holder
from lifehold.core.owner import Owner
from lifehold.local import ground
from lifehold.ops import history
from lifehold.ops import watch as watch_config
from lifehold.ops.answer import HELD, KEPT, STALE, SUSPECT, ClearOutcome, LockAnswer
from lifehold.ops.watch import (
    BEGUN,
    CLEARED,
    ENDED,
    STILL,
    Alert,
    AlertSender,
    Config,
    Watch,
    metrics,
    of,
    write_textfile,
)
from lifehold.runtime import process


def lock(path, state, since=0.0):
    return LockAnswer(path, path, state, Holder(Owner(7), since, "alive", "kernel witness"))


class World:
    """Locks and histories that a test sets, and the alerts that it hears."""

    def __init__(self, **config):
        self.locks, self.runs, self.told = [], [], []
        self.watch = Watch(
            Config(("/w",), **config), self.told.append,
            lambda folder: self.locks, lambda folder: self.runs,
        )  # fmt: skip

    def at(self, now):
        before = len(self.told)
        self.watch.round(now)
        return [(each.what, each.state, each.path) for each in self.told[before:]]


def runs(*events, end=1000.0):
    return [
        history.HistoryEntry(event, "job", end - 60 * at) for at, event in enumerate(events[::-1])
    ][::-1]


def test_a_stale_lock_is_told_when_it_begins_again_after_a_day_and_when_it_ends():
    world = World()
    world.locks = [lock("/w/a", STALE)]
    assert world.at(0) == [("stale", BEGUN, "/w/a")]
    assert world.at(60) == []
    assert world.at(86400) == [("stale", STILL, "/w/a")]
    assert world.told[-1].since == 0
    world.locks = []
    assert world.at(86460) == [("stale", ENDED, "/w/a")]
    assert world.at(86520) == []


def test_a_lock_held_for_longer_than_allowed_is_told_with_its_holder():
    world = World(held=3600.0)
    world.locks = [lock("/w/a", HELD, since=0.0)]
    assert world.at(3600) == []
    assert world.at(3601) == [("held too long", BEGUN, "/w/a")]
    assert "pid 7" in world.told[-1].text


def test_suspects_are_told_only_when_asked_for():
    for policy, expected in (("ignore", []), ("alert", [("suspect", BEGUN, "/w/a")])):
        world = World(suspect=policy)
        world.locks = [lock("/w/a", SUSPECT)]
        assert world.at(0) == expected


def test_a_backup_that_is_skipped_again_and_again_is_told():
    world = World(skips=3)
    world.runs = [("/w/backup.lock", runs("hold", "skip", "timeout"))]
    assert world.at(1000) == []
    world.runs = [("/w/backup.lock", runs("hold", "skip", "timeout", "skip"))]
    assert world.at(1060) == [("skipped", BEGUN, "/w/backup.lock")]
    world.runs = [("/w/backup.lock", runs("skip", "skip", "skip", "hold"))]
    assert world.at(1120) == [("skipped", ENDED, "/w/backup.lock")]


def test_a_job_that_has_not_run_for_too_long_is_told():
    world = World(silent=3600.0, skips=0)
    world.runs = [("/w/backup.lock", runs("hold", end=1000.0))]
    assert world.at(4600) == []
    assert world.at(4601) == [("silent", BEGUN, "/w/backup.lock")]


def test_a_line_of_a_clock_that_stood_ahead_hides_no_silence():
    world = World(silent=3600.0, skips=0)
    ahead = history.HistoryEntry("hold", "job", 365 * 86400.0)
    world.runs = [("/w/backup.lock", [*runs("hold", end=1000.0), ahead])]
    assert world.at(4600) == []
    assert world.at(4601) == [("silent", BEGUN, "/w/backup.lock")]
    near = history.HistoryEntry("hold", "job", 4720.0)  # a clock of another host, not quite ours
    world.runs = [("/w/backup.lock", [near])]
    assert world.at(4661) == [("silent", ENDED, "/w/backup.lock")]


def test_a_folder_that_cannot_be_read_is_told_and_ends_nothing(tmp_path):
    told = []
    watch = Watch(Config((str(tmp_path / "none"), str(tmp_path))), told.append)
    assert watch.round().failures == 1
    assert [each.what for each in told] == ["unread"]
    (tmp_path / "none").mkdir()
    watch.round()
    assert [each.state for each in told] == [BEGUN, ENDED]


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A folder below `tmp_path` that may not be read, also not by root."""
    inner = tmp_path / "inner"
    inner.mkdir()
    look = os.scandir

    def scandir(folder="."):
        if folder == str(inner):
            raise PermissionError(13, "Permission denied", folder)
        return look(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    return str(inner)


@pytest.mark.parametrize("policy", ["ignore", "alert"])
def test_a_folder_below_that_cannot_be_read_is_told_and_is_no_lock(tmp_path, closed, policy):
    told = []
    watch = Watch(Config((str(tmp_path),), suspect=policy), told.append)
    tally = watch.round()
    assert (tally.failures, tally.wrong, tally.locks["suspect"]) == (1, {"unread": 1}, 0)
    assert [(each.what, each.state, each.path) for each in told] == [("unread", BEGUN, closed)]
    assert told[0].text == f"'{closed}' could not be read"
    watch.round()
    assert len(told) == 1
    os.rmdir(closed)
    watch.round()
    assert [each.state for each in told] == [BEGUN, ENDED]


def test_a_folder_whose_histories_cannot_be_read_is_told(tmp_path, closed):
    told = []
    Watch(Config((str(tmp_path),)), told.append, lambda folder: []).round()
    assert [(each.what, each.path) for each in told] == [("unread", closed)]


def test_no_other_file_system_below_a_folder_is_entered(tmp_path, monkeypatch):
    for each in ("here", "other", "other/below"):
        (tmp_path / each).mkdir()
        assert history.append(f"{tmp_path}/{each}/x.lock", runs("hold", end=1000.0)[0])
    monkeypatch.setattr(ground, "mount_points", lambda: ["/", f"{tmp_path}/other"])
    (tmp_path / "link").symlink_to(tmp_path)
    for way in (f"{tmp_path}", f"{tmp_path}/link", f"{tmp_path}/link/", f"{tmp_path}/link/here/.."):
        found = watch_config.histories_in(way)
        assert [lock for lock, _ in found] == [os.path.join(way, "here/x.lock")]
    below = watch_config.histories_in(f"{tmp_path}/other")  # which was named
    assert len(below) == 2


@needs("linux", "proc", "all processes")
def test_only_the_policy_clears_and_only_what_is_proven(tmp_path, monkeypatch):
    monkeypatch.setenv("LIFEHOLD_DIR", str(tmp_path / "names"))
    folder = tmp_path / "run"
    folder.mkdir()
    dead = 4_190_000
    while process.look(dead).exists:
        dead -= 1
    (folder / "dead.pid").write_text(f"{dead}\n")
    (folder / "SingletonLock").symlink_to("elsewhere-77")
    told: list[Alert] = []
    assert Watch(Config((str(folder),)), told.append).round().wrong == {"stale": 1}
    assert (folder / "dead.pid").exists()
    watch = Watch(Config((str(folder),), stale="clear"), told.append)
    assert (watch.round().cleared, told[-1].what) == (1, CLEARED)
    assert (folder / "dead.pid").read_bytes() == b""
    assert (folder / "SingletonLock").is_symlink()


def refuses(error):
    def clear(path, **terms):
        raise error

    return clear


KEEPS = ClearOutcome("/w/a", KEPT, "another user owns it", lock("/w/a", STALE))


@pytest.mark.parametrize(
    ("clear", "why"),
    [(lambda path, **terms: KEEPS, "another user owns it"),
     (refuses(PermissionError(13, "Permission denied", "/x")), "Permission denied: '/x'"),
     (refuses(SystemRefused("the audit log cannot be written")), "the audit log"),
     (refuses(ZeroDivisionError()), "ZeroDivisionError()")],
    ids=["kept", "OSError", "SystemRefused", "nameless"],
)  # fmt: skip
def test_an_alert_says_why_the_policy_did_not_clear(monkeypatch, clear, why):
    monkeypatch.setattr(watch_config.clear, "clear", clear)
    world = World(stale="clear")
    world.locks = [lock("/w/a", STALE)]
    assert world.at(0) == [("stale", BEGUN, "/w/a")]
    text = world.told[-1].text
    assert text.startswith("pid 7: kernel witness; not cleared: ")
    assert why in text


@pytest.mark.large
def test_a_week_of_rounds_tells_what_happened_and_keeps_nothing():
    """10,080 rounds, 40 locks that come and go: one alert at each begin and end, no more memory."""
    world = World(held=7200.0)
    tracemalloc.start()
    try:
        for minute in range(7 * 24 * 60):
            if minute % 180 == 0:
                day = minute // 1440
                world.locks = [lock(f"/w/{day}-{n}", STALE) for n in range(40)]
            elif minute % 180 == 60:
                world.locks = []
            world.watch.round(60.0 * minute)
            if minute == 1440:
                world.told.clear()
                first = tracemalloc.get_traced_memory()[0]
        kept = len(world.watch._wrong)
        alerts = len(world.told)
        world.told.clear()
        grown = tracemalloc.get_traced_memory()[0] - first
    finally:
        tracemalloc.stop()
    assert (kept, world.watch.rounds) == (0, 10_080)
    assert alerts == 6 * 8 * 40 * 2 - 40  # the first forty had begun before they were counted
    assert grown < 200_000


@pytest.mark.parametrize(
    ("given", "words"),
    [({}, "folders is needed"), ({"folders": []}, "folders is a list"),
     ({"folders": ["run"]}, "absolute paths"), ({"folder": ["/x"]}, "no key 'folder'"),
     ({"folders": ["/x"], "every": "1 h"}, "every is a length of time"),
     ({"folders": ["/x"], "every": 0}, "a second or longer"),
     ({"folders": ["/x"], "every": True}, "every is a length"),
     ({"folders": ["/x"], "stale": "remove"}, "one of alert, clear, ignore"),
     ({"folders": ["/x"], "suspect": "clear"}, "one of alert, ignore"),
     ({"folders": ["/x"], "webhook": "file:///etc/passwd"}, "http or https"),
     ({"folders": ["/x"], "listen": "9467"}, "HOST:PORT"),
     ({"folders": ["/x"], "command": "mail"}, "a list of texts"),
     ({"folders": ["/x"], "skips": -1}, "a number of runs"),
     ({"folders": ["/x"], "textfile": "/x\0d"}, "textfile contains a null character"),
     ({"folders": ["/x", "/x\0d"]}, "folders contains a null character"),
     ({"folders": ["/x"], "command": ["mail", "\0"]}, "command contains a null character"),
     ({"folders": ["/x"], "listen": "a\0b:1"}, "listen contains a null character"),
     ({"folders": ["/x"], "listen": "localhost:²"}, "HOST:PORT"),
     ({"folders": ["/x"], "every": "²s"}, "every is a length"),
     ({"folders": ["/x"], "every": f"{'9' * 20}d"}, "every is a length"),
     ({"folders": ["/x"], "held": 16**5000}, "held is a length"),
     ({"folders": ["/x"], "listen": "localhost:" + "9" * 5000}, "HOST:PORT")],
)  # fmt: skip
def test_a_wrong_configuration_names_the_key_and_what_it_may_be(given, words):
    with pytest.raises(InvalidArgument, match=words):
        of(given)


def test_a_configuration_is_read_with_its_units(tmp_path):
    path = tmp_path / "watch.toml"
    path.write_text('folders = ["/run/lock"]\nevery = "30s"\nheld = "6h"\nsilent = "1.5d"\n')
    found = watch_config.read(str(path))
    assert (found.every, found.held, found.silent) == (30.0, 21600.0, 129600.0)
    path.write_text("folders = [")
    with pytest.raises(InvalidArgument, match="is no TOML"):
        watch_config.read(str(path))


@pytest.mark.parametrize(
    "line",
    ["held = " + "9" * 4400, "held = 0x" + "f" * 5000, "held = " + "[" * 20_000,
     "held" + ".a" * 20_000 + " = 1", "held = [" + "9" * 4400 + "]"],
    ids=["digits", "hexadecimal", "nested", "dotted", "digits in a list"],
)  # fmt: skip
def test_what_is_too_long_or_too_deep_for_python_is_a_wrong_configuration(tmp_path, line):
    path = tmp_path / "watch.toml"
    path.write_text(f'folders = ["/x"]\n{line}\n')
    with pytest.raises(InvalidArgument, match=r"/watch\.toml") as refused:
        watch_config.read(str(path))
    assert len(refused.value.text) < 1000


ALERT = Alert("stale", BEGUN, "/w/a\nb\x1b[31m", "gone", 1.0, 2.0)


def test_an_alert_reaches_the_log_the_command_and_the_webhook(tmp_path):
    heard = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words):
            return

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        teller = AlertSender(Config(
            ("/w",), log=str(tmp_path / "log"), command=("sh", "-c", f"cat > {tmp_path}/told"),
            webhook=f"http://127.0.0.1:{server.server_port}/",
        ))  # fmt: skip
        teller(ALERT)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["path"] == "/w/a\\nb\\x1b[31m"
    assert json.loads((tmp_path / "told").read_text()) == json.loads(line) == heard[0]
    assert (teller.told, teller.failures) == (1, 0)


def test_what_cannot_be_told_is_counted(tmp_path):
    teller = AlertSender(Config(
        ("/w",), log=str(tmp_path), command=("false",), webhook="http://127.0.0.1:1/",
    ))  # fmt: skip
    teller(ALERT)
    assert (teller.told, teller.failures) == (1, 3)


def test_the_numbers_are_what_prometheus_reads_and_are_put_there_as_a_whole(tmp_path):
    world = World()
    world.locks = [lock("/w/a", STALE), lock("/w/b", HELD)]
    world.at(100)
    text = metrics(world.watch.tally, AlertSender(world.watch.config))
    assert 'lifehold_locks{state="stale"} 1\n' in text
    assert 'lifehold_wrong{what="stale"} 1\n' in text
    assert "lifehold_oldest_hold_seconds 100\n" in text
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rpartition(" ")[2]) >= 0
    write_textfile(str(tmp_path / "lifehold.prom"), text)
    assert [each.name for each in tmp_path.iterdir()] == ["lifehold.prom"]
    assert (tmp_path / "lifehold.prom").read_text() == text
