"""Whatever a webhook answers, or does not, the watch goes on, and told is what the server took."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.request
from contextlib import contextmanager

import pytest

from ground import needs
from lifehold.core.errors import InvalidArgument
from lifehold.ops import watch
from lifehold.ops.watch import BEGUN, Alert, AlertSender, Config, of, write_textfile
from servers.ports import free_port

pytestmark = needs("linux", "proc")
ALERT = Alert("stale", BEGUN, "/w/a", "gone", 1.0, 2.0)


@contextmanager
def server(answer):
    """A server that takes connections and does `answer(connection, over)` with each."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as ear:
        ear.settimeout(0.05)
        threads = []

        def serve(taken):
            with taken:
                taken.settimeout(10)
                try:
                    asked = taken.recv(65536)
                    while asked and b"\r\n\r\n" not in asked:
                        asked += taken.recv(65536)
                    answer(taken, over)
                    taken.shutdown(socket.SHUT_WR)
                except OSError:
                    return

        def run():
            while not over.is_set():
                try:
                    taken, _ = ear.accept()
                except OSError:
                    continue
                threads.append(threading.Thread(target=serve, args=(taken,)))
                threads[-1].start()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{ear.getsockname()[1]}/hook"
        finally:
            over.set()
            thread.join()
            for each in threads:
                each.join()


def once(*parts):
    return lambda taken, over: [taken.sendall(part) for part in parts]


def again_and_again(part, every):
    def answer(taken, over):
        while not over.wait(every):
            taken.sendall(part)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
BAD = {
    "the banner of ssh": once(b"SSH-2.0-OpenSSH_9.2p1\r\n"),
    "nothing": once(),
    "101 headers": once(OK, *(b"X-%d: 1\r\n" % n for n in range(101)), b"\r\n"),
    "500 headers": once(OK, *(b"X-%d: 1\r\n" % n for n in range(500)), b"\r\n"),
    "a header of 100 kB": once(OK, b"X: " + b"a" * 100_000 + b"\r\n\r\n"),
    "a wrong length": once(b"HTTP/1.1 500 No\r\nContent-Length: x\r\n\r\n"),
    "a status that is no number": once(b"HTTP/1.1 two OK\r\n\r\n"),
    "an error": once(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
    "switching": once(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
    "a redirect to a file": once(b"HTTP/1.1 302 F\r\nLocation: file:///etc/passwd\r\n\r\n"),
    "a redirect without a place": once(b"HTTP/1.1 301 Moved\r\n\r\n"),
    "bytes": once(os.urandom(4096)),
}  # fmt: skip


@pytest.mark.parametrize("answer", BAD)
def test_no_answer_of_a_server_ends_the_watch_or_counts_as_told(answer):
    said = []
    with server(BAD[answer]) as url:
        teller = AlertSender(Config(("/w",), webhook=url), said.append)
        teller(ALERT)
    assert (teller.told, teller.failures, len(said)) == (1, 1, 1)
    assert said[0].startswith("the webhook took no alert: ")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_told_and_the_reason_says_what_to_do(status):
    said = []
    with server(once(b"HTTP/1.1 %d M\r\nLocation: https://h.example/\r\n\r\n" % status)) as url:
        teller = AlertSender(Config(("/w",), webhook=url), said.append)
        teller(ALERT)
    assert teller.failures == 1
    assert "use the final URL" in said[0]


@pytest.mark.parametrize("status", [200, 202, 204])
def test_what_the_server_took_is_told(status):
    with server(once(b"HTTP/1.1 %d Y\r\n\r\n" % status)) as url:
        teller = AlertSender(Config(("/w",), webhook=url))
        teller(ALERT)
    assert (teller.told, teller.failures) == (1, 0)


ENDLESS = {
    "a byte now and then": again_and_again(b"H", 0.1),
    "headers that never end": again_and_again(b"HTTP/1.1 200 OK\r\n", 0.1),
    "100 Continue without end": again_and_again(b"HTTP/1.1 100 Continue\r\n\r\n", 0.1),
    "silence": again_and_again(b"", 0.1),
}


@pytest.mark.parametrize("answer", ENDLESS)
def test_an_exchange_ends_after_its_time_whatever_drips(answer, monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", 1.0)
    with server(ENDLESS[answer]) as url:
        teller = AlertSender(Config(("/w",), webhook=url))
        began = time.monotonic()
        teller(ALERT)
        assert 0.9 < time.monotonic() - began < 60
        assert teller.failures == 1
        until = time.monotonic() + 60
        while teller._open:  # its thread ends too, since its connection was cut
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.mark.parametrize("answer", ENDLESS)
def test_the_daemon_answers_and_ends_while_a_webhook_drips(answer, lifehold, eventually):
    port = free_port()
    folder = lifehold.folder / "seen"
    folder.mkdir()
    for number in range(20):
        (folder / f"SingletonLock{number}").mkdir()
        (folder / f"SingletonLock{number}" / "SingletonLock").symlink_to("elsewhere-77")
    config = lifehold.folder / "watch.toml"
    with server(ENDLESS[answer]) as url:
        config.write_text(
            f'folders = ["{folder}"]\nevery = "1s"\nsuspect = "alert"\nwebhook = "{url}"\n'
            f'listen = "127.0.0.1:{port}"\n'
        )
        daemon = lifehold.start("watch", str(config))

        def got(path):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                    return answer.read().decode()
            except OSError:
                return ""

        eventually(lambda: "lifehold_rounds_total 3" in got("/metrics"), "rounds go on")
        assert got("/healthz") == "ok\n"
        daemon.terminate()
        _, said = daemon.communicate(timeout=60)  # of 20 alerts of 10 s each it waits for none
        assert daemon.returncode == 0
        assert "alerts were not told any more" in said


@pytest.mark.parametrize(
    "url", ["http://h:notaport/x", "http://h:0/", "http://h:70000/", "http://127.0.0.1:9/a b",
            "http:///x", "http://", "https://u:SECRET@h/x", "http://h/a\n", "http://h/é",
            "http://[::1/x", "ftp://h/"],
)  # fmt: skip
def test_a_url_that_cannot_work_is_refused_when_it_is_read_and_not_repeated(url):
    with pytest.raises(InvalidArgument, match="webhook is an http or https URL: ") as refused:
        of({"folders": ["/x"], "webhook": url})
    assert "SECRET" not in str(refused.value)
    assert of({"folders": ["/x"], "webhook": "https://[::1]:8443/a?b=c#d"}).webhook


def test_alerts_are_told_one_after_the_other_and_the_line_is_bounded(monkeypatch):
    heard, go = [], threading.Event()
    monkeypatch.setattr(watch, "LINE", 3)
    teller = AlertSender(Config(("/w",), log="/x"))
    monkeypatch.setattr(teller, "_log", lambda line: (go.wait(120), heard.append(json.loads(line))))
    for number in range(5):
        teller.later(Alert("stale", BEGUN, f"/w/{number}", "gone", 1.0, 2.0))
    assert teller.end(0.0) == 3
    assert teller.failures == 2
    go.set()
    assert teller.end(20.0) == 0
    assert [each["path"] for each in heard] == ["/w/0", "/w/1", "/w/2"]
    teller.later(ALERT)
    assert teller.end(20.0) == 0
    assert len(heard) == 4


def test_a_fifo_in_the_place_of_a_log_or_of_numbers_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / "log")
    teller = AlertSender(Config(("/w",), log=str(tmp_path / "log")))
    teller(ALERT)
    assert teller.failures == 1
    os.mkfifo(tmp_path / "numbers")
    write_textfile(str(tmp_path / "numbers"), "a 1\n")
    assert (tmp_path / "numbers").read_text() == "a 1\n"
