"""Where `watch` tells: a log of JSON lines, a command, a webhook; numbers for Prometheus.

Promise: what cannot be told is counted and tried no second time; nothing waits longer than
PATIENCE, whatever a server answers or does not, and told is only what it took (2xx). Names are
escaped (L11): a hostile file name makes no second line and no second label.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections import deque

from ..core.mask import printable
from ..core.value import as_dict
from ..runtime import eventloop, fork, rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .watch import Alert, Tally
    from .watch_config import Config

PATIENCE = 10.0  # seconds for a command or a server, from the first step to the last
LINE = 1000  # alerts that wait to be told
AT_ONCE = 4  # exchanges with a server that go on, though nobody waits for them any more
COMMON = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
COMMON |= getattr(os, "O_NONBLOCK", 0)  # a FIFO must not hold the watch up


class Teller:
    """Tells alerts as a configuration says. `failures`: how many could not be told.

    Called, it tells at once; `later` tells them one after the other in a thread of its own.
    `report`: hears why something could not be told, once until the reason is another.
    """

    def __init__(self, config: Config, report: Callable[[str], object] = lambda why: None) -> None:
        self.config, self.failures, self.told = config, 0, 0
        self._report, self._why = report, ""
        self._line: deque[Alert] = deque()
        self._ended: Callable[[float], bool] = lambda seconds: True
        self._mutex = eventloop.mutex()
        self._tells = False
        self._open = 0

    def __call__(self, alert: Alert) -> None:
        import json

        shown = {key: printable(each) if isinstance(each, str) else each
                 for key, each in as_dict(alert).items()}  # fmt: skip
        line = json.dumps({"schema": "lifehold.alert/1", **shown})
        self.told += 1
        for name, tell in (("log", self._log), ("command", self._command),
                           ("webhook", self._webhook)):  # fmt: skip
            if getattr(self.config, name):
                try:
                    tell(line)
                except Exception as error:  # noqa: BLE001 - a way that fails costs itself alone
                    why = printable(str(error) or repr(error))
                    self._failed(f"the {name} took no alert: {why}")

    def later(self, alert: Alert) -> None:
        """Tell it soon, and return at once: the daemon has requests and signals to answer."""
        if len(self._line) >= LINE:
            self._failed(f"{LINE} alerts wait to be told already: this one is not")
            return
        with self._mutex:
            self._line.append(alert)
            if not self._tells:
                self._tells = True
                self._ended = eventloop.aside(self._tell_all)

    def end(self, seconds: float) -> int:
        """Wait so long for what is still to be told; how many are left."""
        self._ended(seconds)
        return len(self._line)

    def _tell_all(self) -> None:
        while True:
            with self._mutex:
                if not self._line:
                    self._tells = False
                    return
                alert = self._line[0]
            self(alert)
            self._line.popleft()

    def _failed(self, why: str) -> None:
        self.failures += 1
        if why != self._why:
            self._why = why
            self._report(why)

    def _log(self, line: str) -> None:
        path = self.config.log
        rights.act(rights.writer_for(path), lambda: _append(path, line.encode() + b"\n"))

    def _command(self, line: str) -> None:
        subprocess.run(  # noqa: S603
            self.config.command, input=line.encode(), timeout=PATIENCE, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _webhook(self, line: str) -> None:
        """In a thread: neither a name that is not resolved nor a server that drips holds us up."""
        if self._open >= AT_ONCE:
            raise OSError("the exchanges before have not ended yet")
        url, connections, failed = self.config.webhook, [], []  # type: ignore[var-annotated]

        def exchange() -> None:
            try:
                _post(url, line.encode(), connections)
            except Exception as error:  # noqa: BLE001 - http.client raises what is no OSError
                failed.append(error)
            finally:
                with self._mutex:
                    self._open -= 1

        with self._mutex:
            self._open += 1
        if not eventloop.aside(exchange)(PATIENCE):
            for each in connections:
                _cut(each)
            raise TimeoutError(f"the server did not answer within {PATIENCE:g} s")
        if failed:
            raise failed[0]


def _post(url: str, body: bytes, connections: list[Any]) -> None:
    """One POST that is told only if the answer is 2xx. Raises OSError, HTTPException, ValueError.

    `connections`: gets the connection, for who cuts it.
    """
    request: Any = fork.lazily("urllib.request")
    client: Any = fork.lazily("http.client")

    def kept(kind: Any) -> Callable[..., Any]:
        def make(*args: Any, **terms: Any) -> Any:
            connections.append(kind(*args, **terms))
            return connections[-1]

        return make

    class Plain(request.HTTPHandler):  # type: ignore[misc]
        def http_open(self, asked: Any) -> Any:
            return self.do_open(kept(client.HTTPConnection), asked)

    class Safe(request.HTTPSHandler):  # type: ignore[misc]
        def https_open(self, asked: Any) -> Any:
            return self.do_open(kept(client.HTTPSConnection), asked)

    class Stays(request.HTTPRedirectHandler):  # type: ignore[misc]
        """A redirected POST arrives as a GET without its content: it would be told to nobody."""

        def redirect_request(self, *args: Any) -> None:
            answer, code = args[1:3]
            answer.close()
            raise OSError(f"the server redirects ({code}), which is not told: use the final URL")

    opener = request.build_opener(Plain, Safe, Stays)
    asked = request.Request(url, body, {"Content-Type": "application/json"})
    errors: Any = fork.lazily("urllib.error")
    try:
        with opener.open(asked, timeout=PATIENCE):
            return
    except errors.HTTPError as error:
        error.close()
        raise OSError(f"the server answered {error.code}") from None
    finally:
        for each in connections:
            each.close()


def _cut(connection: Any) -> None:
    """End what another thread waits for in it."""
    try:
        connection.sock.shutdown(2)  # socket.SHUT_RDWR
    except (OSError, AttributeError):
        return  # not connected yet, or not any more


def metrics(tally: Tally, teller: Teller) -> str:
    """The numbers, as Prometheus and node-exporter read them."""
    rows: list[tuple[str, str, str, list[tuple[str, float]]]] = [
        ("lifehold_locks", "gauge", "Locks by state.",
         [(f'{{state="{name}"}}', count) for name, count in tally.locks.items()]),
        ("lifehold_wrong", "gauge", "What is wrong now, by policy.",
         [(f'{{what="{name}"}}', count) for name, count in sorted(tally.wrong.items())]),
        ("lifehold_oldest_hold_seconds", "gauge", "Age of the oldest hold.", [("", tally.oldest)]),
        ("lifehold_cleared_total", "counter", "Stale locks removed.", [("", tally.cleared)]),
        ("lifehold_rounds_total", "counter", "Rounds of the watch.", [("", tally.rounds)]),
        ("lifehold_failures_total", "counter", "Folders not read, and clears that failed.",
         [("", tally.failures)]),
        ("lifehold_alerts_total", "counter", "Alerts.", [("", teller.told)]),
        ("lifehold_untold_total", "counter", "Alerts that one way did not take.",
         [("", teller.failures)]),
        ("lifehold_round_seconds", "gauge", "How long the last round took.", [("", tally.took)]),
        ("lifehold_last_round_timestamp_seconds", "gauge", "When it was.", [("", tally.at)]),
    ]  # fmt: skip
    lines = []
    for name, kind, words, samples in rows:
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{label} {number:.10g}" for label, number in samples]
    return "\n".join(lines) + "\n"


def _append(path: str, line: bytes) -> None:
    """L13  Never to what another put there: a FIFO, a link, a second name of somebody's file."""
    fd = os.open(path, COMMON | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(errno.EINVAL, "it is no file of one name", path)
        os.write(fd, line)
    finally:
        os.close(fd)


def write_textfile(path: str, text: str) -> None:
    """Put it there as a whole, for node-exporter's textfile collector.

    Raises OSError, SystemRefused.
    """
    rights.act(rights.writer_for(path), lambda: _put(path, text.encode()))


def _put(path: str, content: bytes) -> None:
    aside = f"{path}.{os.urandom(8).hex()}"
    fd = os.open(aside, COMMON | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        try:
            if os.write(fd, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        finally:
            os.close(fd)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
