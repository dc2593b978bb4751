"""`lifehold watch` as a daemon: one instance, requests, reload, systemd, its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request

import pytest

from ground import needs
from lifehold.ops.watch import READERS, of
from servers.ports import free_port

pytestmark = needs("linux", "proc")


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def config(lifehold, port):
    folder = lifehold.folder / "seen"
    folder.mkdir()
    path = lifehold.folder / "watch.toml"
    path.write_text(
        f'folders = ["{folder}"]\nevery = "1s"\nsuspect = "alert"\n'
        f'log = "{lifehold.folder}/alerts"\nlisten = "127.0.0.1:{port}"\n'
        f'textfile = "{lifehold.folder}/numbers.prom"\n'
    )
    return path


@pytest.fixture
def systemd(lifehold):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(lifehold.folder / "notify"))
        ear.settimeout(30)
        yield ear


def test_the_daemon_tells_serves_reloads_and_ends(lifehold, config, port, systemd, eventually):
    env = {"NOTIFY_SOCKET": systemd.getsockname()}
    daemon = lifehold.start("watch", str(config), env=env)
    assert systemd.recv(999) == b"READY=1"
    assert systemd.recv(999).startswith(b"WATCHDOG=1\nSTATUS=0 locks")

    def got(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.read().decode()

    assert got("/healthz") == "ok\n"
    assert "lifehold_rounds_total" in got("/metrics")
    second = lifehold("watch", str(config))
    assert second.returncode == 75
    (lifehold.folder / "seen" / "SingletonLock").symlink_to("elsewhere-77")
    alerts = lifehold.folder / "alerts"
    eventually(lambda: alerts.exists() and '"suspect"' in alerts.read_text(), "it is told")
    eventually(lambda: 'what="suspect"} 1' in got("/metrics"), "it is counted")
    assert 'what="suspect"} 1' in (lifehold.folder / "numbers.prom").read_text()

    config.write_text(config.read_text() + "evry = 3\n")
    os.kill(daemon.pid, signal.SIGHUP)
    while not systemd.recv(999).startswith(b"RELOADING=1"):
        pass
    assert systemd.recv(999) == b"READY=1"
    assert got("/healthz") == "ok\n"
    daemon.terminate()
    _, said = daemon.communicate(timeout=90)
    assert daemon.returncode == 0
    assert "the old configuration stays in force" in said
    assert "no key 'evry'" in said


def test_who_does_not_read_what_it_is_told_holds_nobody_up(tmp_path):
    """The watch would be deaf to SIGTERM, too."""
    words = "from lifehold.cli.watch import notify; notify('WATCHDOG=1')"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "told"))
        deaf.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                deaf.sendto(b"WATCHDOG=1", deaf.getsockname())
        environment = os.environ | {"NOTIFY_SOCKET": deaf.getsockname()}
        subprocess.run([sys.executable, "-c", words], env=environment, check=True, timeout=20)


def test_a_killed_daemon_leaves_room_for_the_next(lifehold, config, systemd):
    env = {"NOTIFY_SOCKET": systemd.getsockname()}
    for _ in range(2):
        daemon = lifehold.start("watch", str(config), env=env)
        while systemd.recv(999) != b"READY=1":
            pass
        daemon.kill()
        daemon.wait()


def test_one_round_and_a_check_say_what_is_wrong(lifehold, config):
    assert lifehold("watch", "--check", str(config)).returncode == 0
    assert lifehold("watch", "--once", str(config)).returncode == 0
    (lifehold.folder / "seen" / "SingletonLock").symlink_to("elsewhere-77")
    once = lifehold("watch", "--once", str(config))
    which, count = once.stderr.splitlines()
    assert which.startswith(f"lifehold: suspect: {lifehold.folder}/seen/SingletonLock: ")
    assert (once.returncode, count) == (1, "lifehold: 1 suspect")
    config.write_text("folders = 3\n")
    wrong = lifehold("watch", "--check", str(config))
    assert wrong.returncode == 64
    assert "folders is a list of texts, not 3" in wrong.stderr
    assert lifehold("watch", "/no/such.toml").returncode == 71


def test_the_help_shows_a_configuration_with_every_key(lifehold):
    text = lifehold("help", "watch").stdout
    lines = re.findall(r"^  (\w+ = .*?)  ", text, re.MULTILINE)
    given = tomllib.loads("\n".join(lines))
    assert [*given] == [*READERS]
    assert of(given).listen == "127.0.0.1:9467"


def test_what_one_round_found_is_said_though_its_numbers_cannot_be_written(lifehold, config):
    (lifehold.folder / "seen" / "SingletonLock").symlink_to("elsewhere-77")
    config.write_text(config.read_text().replace("numbers.prom", "none/numbers.prom"))
    once = lifehold("watch", "--once", str(config))
    which, count, why = once.stderr.splitlines()
    assert which.startswith(f"lifehold: suspect: {lifehold.folder}/seen/SingletonLock: ")
    assert count == "lifehold: 1 suspect"
    assert why.startswith("lifehold: the text file cannot be written: ")
    assert once.returncode == 71


def test_two_configurations_of_one_file_name_run_side_by_side(lifehold, config, systemd):
    env = {"NOTIFY_SOCKET": systemd.getsockname()}
    other = lifehold.folder / "other" / "watch.toml"
    other.parent.mkdir()
    other.write_text(f'folders = ["{lifehold.folder}/seen"]\n')
    (lifehold.folder / "alias.toml").symlink_to(config)
    for each in (config, other):
        lifehold.start("watch", str(each), env=env)
        assert b"READY=1" in (systemd.recv(999) for _ in range(20))
    for each in (config, other, lifehold.folder / "alias.toml"):
        refused = lifehold("watch", str(each))
        assert (refused.returncode, "it is held" in refused.stderr) == (75, True)


def test_the_same_port_moves_to_another_address_and_stays_where_that_is_refused(
    lifehold, config, port, systemd
):
    daemon = lifehold.start("watch", str(config), env={"NOTIFY_SOCKET": systemd.getsockname()})
    given = config.read_text()

    def hears(host):
        with socket.socket() as caller:
            return caller.connect_ex((host, port)) == 0

    def moved(host):
        config.write_text(given.replace("127.0.0.1", host))
        os.kill(daemon.pid, signal.SIGHUP)
        assert b"READY=1" in (systemd.recv(999) for _ in range(20))
        return hears("127.0.0.1"), hears("127.0.0.2")

    assert b"READY=1" in (systemd.recv(999) for _ in range(20))
    assert (hears("127.0.0.1"), hears("127.0.0.2")) == (True, False)
    assert moved("0.0.0.0") == (True, True)
    assert moved("192.0.2.1") == (True, True)  # no address of ours
    assert moved("127.0.0.2") == (False, True)
    daemon.terminate()
    _, said = daemon.communicate(timeout=90)
    assert daemon.returncode == 0
    assert said.count("the configuration was read again") == 2
    assert said.count("the old configuration stays in force: listen '192.0.2.1:") == 1


def test_the_daemon_tells_on_stderr_what_begins_and_what_ends(lifehold):
    """Without a log, a command and a webhook too: the unit's journal is all that most look at."""
    seen, none = lifehold.folder / "seen", lifehold.folder / "none"
    seen.mkdir()
    path = lifehold.folder / "watch.toml"
    path.write_text(f'folders = ["{seen}", "{none}"]\nevery = "1s"\nsuspect = "alert"\n')
    daemon = lifehold.start("watch", str(path))
    assert daemon.stderr.readline() == "lifehold: watching 2 folders every 1 s\n"
    assert daemon.stderr.readline() == f"lifehold: unread: {none}: '{none}' is not a folder\n"
    (seen / "SingletonLock").symlink_to("elsewhere-77")
    assert daemon.stderr.readline().startswith(f"lifehold: suspect: {seen}/SingletonLock: ")
    (seen / "SingletonLock").unlink()
    said = daemon.stderr.readline()
    assert said.startswith(f"lifehold: suspect (ended): {seen}/SingletonLock: ")
    none.mkdir()
    assert daemon.stderr.readline().startswith(f"lifehold: unread (ended): {none}: ")
    daemon.terminate()
    assert daemon.wait(timeout=90) == 0
