"""A watch over folders: what is stale, held too long, or skipped again and again is told.

Promise: each thing that is wrong is told once when it begins, once more after `again`, and once
when it has ended; a folder that cannot be read is told as well. Nothing is cleared but by policy,
and then by `clear`, which wants a proof. One round never ends the watch: what fails is counted.
State is kept for what is wrong now alone, so a year takes no more memory than a day.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
from collections import deque

from ..core import explain
from ..core.errors import InvalidArgument, LifeholdError
from ..core.mask import printable
from ..core.value import as_dict, value
from ..local.ground import mounts_below
from ..runtime import clock, eventloop, fork, rights
from . import clear, history, inventory
from .answer import FREE, FREED, HELD, NOTHING, REMOVED, STALE, SUSPECT, LockAnswer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http import client
    from typing import Any
    from urllib import error as url_error
    from urllib import request
else:
    client = fork.later("http.client", globals())
    url_error = fork.later("urllib.error", globals(), "url_error")
    request = fork.later("urllib.request", globals())

STALE_LOCK, SUSPECT_LOCK, LONG, SKIPPED, SILENT, UNREAD, CLEARED = (
    "stale",
    "suspect",
    "held too long",
    "skipped",
    "silent",
    "unread",
    "cleared",
)
BEGUN, STILL, ENDED = "begun", "still", "ended"
FRONT, END = ".", ".history"


@value
class Alert:
    """Something to be told. `what`: which policy; `state`: BEGUN, STILL or ENDED; `since`: UTC."""

    what: str
    state: str
    path: str
    text: str
    since: float
    at: float


@value
class RoundTally:
    """What the last round saw: locks by state, alerts by policy, how long it took in seconds."""

    locks: dict[str, int]
    wrong: dict[str, int]
    rounds: int
    failures: int
    cleared: int
    took: float
    at: float
    oldest: float


class Watch:
    """The watch. `tell` hears every alert; `scan` and `histories` are asked for what there is."""

    def __init__(
        self,
        config: Config,
        tell: Callable[[Alert], object],
        scan: Callable[[str], list[LockAnswer]] | None = None,
        histories: Callable[[str], list[tuple[str, list[history.HistoryEntry]]]] | None = None,
    ) -> None:
        self.config, self._tell = config, tell
        self._scan = scan or (lambda folder: inventory.of_folder(folder, deep=True))
        self._histories = histories or histories_in
        self._wrong: dict[tuple[str, str], tuple[float, float, str]] = {}  # since, told, text
        self.rounds = self.failures = self.cleared = 0
        self.tally = RoundTally({}, {}, 0, 0, 0, 0.0, 0.0, 0.0)

    def round(self, now: float | None = None) -> RoundTally:
        """Look at everything once. `now`: UTC seconds, by default the clock's."""
        began = clock.now()
        at = clock.utc_now() if now is None else now
        found: dict[tuple[str, str], str] = {}
        locks: dict[str, int] = dict.fromkeys((HELD, FREE, SUSPECT, STALE), 0)
        oldest = 0.0
        for folder in self.config.folders:
            answers: list[LockAnswer] = []
            runs: list[tuple[str, list[history.HistoryEntry]]] = []
            with self._costs_itself(folder, found):
                answers = self._scan(folder)
            with self._costs_itself(folder, found):
                runs = self._histories(folder)
            for answer in answers:
                if inventory.is_unread(answer):
                    self.failures += 1
                    found[UNREAD, answer.path] = answer.note
                    continue
                locks[answer.state] += 1
                with self._costs_itself(answer.path, found):
                    oldest = max(oldest, _age(answer, at))
                    self._judge(answer, at, found)
            for path, entries in runs:
                with self._costs_itself(path, found):
                    self._judge_runs(path, entries, at, found)
        self._report(found, at)
        self.rounds += 1
        wrong: dict[str, int] = {}
        for what, _ in found:
            wrong[what] = wrong.get(what, 0) + 1
        self.tally = RoundTally(
            locks, wrong, self.rounds, self.failures, self.cleared, clock.now() - began, at, oldest
        )
        return self.tally

    @contextlib.contextmanager
    def _costs_itself(self, path: str, found: dict[tuple[str, str], str]) -> Iterator[None]:
        """L13  One folder, lock or history that fails is told and counted; the round goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.failures += 1
            known = isinstance(error, LifeholdError | OSError)
            found[UNREAD, path] = str(error) if known else repr(error)[:200]

    def _judge(self, answer: LockAnswer, at: float, found: dict[tuple[str, str], str]) -> None:
        config = self.config
        evidence = answer.holder.evidence if answer.holder else answer.note
        by = f"{explain.by(answer.holder)}: {evidence}" if answer.holder else evidence
        if answer.state == STALE and config.stale != IGNORE:
            if config.stale == CLEAR:
                why = self._clear(answer, at)
                if not why:
                    return
                by += f"; not cleared: {why}"
            found[STALE_LOCK, answer.path] = by
        elif answer.state == SUSPECT and config.suspect == ALERT:
            found[SUSPECT_LOCK, answer.path] = by
        elif answer.state == HELD and config.held and _age(answer, at) > config.held:
            found[LONG, answer.path] = f"for more than {explain.span(config.held)}, by {by}"

    def _clear(self, answer: LockAnswer, at: float) -> str:
        """By policy, on proof. Why it is still there, "" if it is gone."""
        try:
            done = clear.clear(answer.path, found=True)
        except Exception as error:  # noqa: BLE001 - it costs itself alone
            self.failures += 1
            known = isinstance(error, LifeholdError | OSError)
            return str(error) if known and str(error) else repr(error)[:200]
        if done.action in (REMOVED, FREED):
            self.cleared += 1
            self._tell(Alert(CLEARED, ENDED, answer.path, done.why, at, at))
        return "" if done.action in (REMOVED, FREED, NOTHING) else done.why or done.action

    def _judge_runs(
        self,
        path: str,
        entries: list[history.HistoryEntry],
        at: float,
        found: dict[tuple[str, str], str],
    ) -> None:
        """By what the history of a lock tells of its runs."""
        for each in entries:
            if each.event == UNREAD:
                why = f"its history cannot be read: {each.reason}"
                found.setdefault((UNREAD, path), why)  # of a folder it was told already
        runs = [each for each in entries if each.event in (history.HOLD, *MISSED)]
        missed = 0
        for each in reversed(runs):
            if each.event not in MISSED:
                break
            missed += 1
        if self.config.skips and missed >= self.config.skips:
            last = runs[-1]
            who = f", held by {last.holder}" if last.holder else ""
            found[SKIPPED, path] = f"its last {missed} runs did not get it{who}"
        latest = at + history.AHEAD  # what another clock wrote ahead of that tells nothing
        holds = [each.at for each in runs if each.event == history.HOLD and each.at <= latest]
        done = max(holds, default=None)
        if self.config.silent and done is not None and at - done > self.config.silent:
            found[SILENT, path] = f"it ran last {explain.span(at - done)} ago"

    def _report(self, found: dict[tuple[str, str], str], at: float) -> None:
        """Tell what has begun, what goes on for long, and what has ended."""
        for (what, path), text in found.items():
            since, told, _ = self._wrong.get((what, path), (at, None, ""))
            if told is None or (self.config.again and at - told >= self.config.again):
                state = BEGUN if told is None else STILL
                self._tell(Alert(what, state, path, text, since, at))
                told = at
            self._wrong[what, path] = since, told, text
        for what, path in [key for key in self._wrong if key not in found]:
            since, _, text = self._wrong.pop((what, path))
            self._tell(Alert(what, ENDED, path, text, since, at))


MISSED = (history.SKIP, history.TIMEOUT)


def _age(answer: LockAnswer, at: float) -> float:
    """Seconds for which it is held, 0.0 where that is not known."""
    holder = answer.holder
    if holder is None or answer.state == FREE:
        return 0.0
    since = holder.since if holder.since is not None else holder.began
    return 0.0 if since is None else max(0.0, at - since)


def histories_in(folder: str) -> list[tuple[str, list[history.HistoryEntry]]]:
    """The histories in a folder and below it, each by the path of its lock.

    Other file systems below it are not entered, as `inventory` does. A folder that cannot be read
    stands there as a history that cannot.
    """
    mounts = mounts_below(folder)
    found: list[tuple[str, list[history.HistoryEntry]]] = []

    def unread(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # it went while we looked
            found.append((error.filename, _unread(error.filename, error)))

    for place, inner, names in os.walk(folder, onerror=unread):
        inner[:] = [name for name in inner if os.path.join(place, name) not in mounts]
        for name in names:
            if name.startswith(FRONT) and name.endswith(END) and name != f".{history.LOG}{END}":
                lock = os.path.join(place, name[len(FRONT) : -len(END)])
                try:
                    found.append((lock, history.read(lock)))
                except OSError as error:
                    found.append((lock, _unread(lock, error)))
    return found


def _unread(path: str, error: OSError) -> list[history.HistoryEntry]:
    return [history.HistoryEntry(UNREAD, path, 0.0, reason=str(error))]


# ------------------------------------------------------------------------------------------------
# What `watch` is told to do: a TOML file, read as a whole or refused.
#
# Promise: an unknown key, a wrong type or a length of time that is none is an error that names the
# key and says what it may be; half a configuration is never in force.


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DAY = 86400.0
SHOWN = 200  # characters of a wrong value
DIGITS = 5  # of a port: Python refuses to make a number of thousands
ALERT, CLEAR, IGNORE = "alert", "clear", "ignore"


@value
class Config:
    """`folders` are looked through with all below them; lengths of time in seconds, 0 for never.

    `stale`: ALERT, CLEAR or IGNORE; `suspect`: ALERT or IGNORE; `held`: alert when a lock is held
    for longer; `skips`: when the last so many runs of a lock were skipped or timed out; `silent`:
    when a lock with a history ran last so long ago; `again`: tell what is still wrong again after
    so long.
    """

    folders: tuple[str, ...]
    every: float = 60.0
    stale: str = ALERT
    suspect: str = IGNORE
    held: float = 0.0
    skips: int = 3
    silent: float = 0.0
    again: float = DAY
    log: str = ""
    command: tuple[str, ...] = ()
    webhook: str = ""
    listen: str = ""
    textfile: str = ""


def read(path: str) -> Config:
    """The configuration in a file. Raises InvalidArgument, OSError."""
    import tomllib

    with open(path, "rb") as file:
        try:
            given = tomllib.load(file)
        except RecursionError as error:
            raise InvalidArgument(f"'{printable(path)}' is nested too deeply") from error
        except ValueError as error:  # also of a number that is too long for Python
            raise InvalidArgument(f"'{printable(path)}' is no TOML: {error}") from error
    try:
        return of(given)
    except InvalidArgument as error:
        raise InvalidArgument(f"'{printable(path)}': {error.text}") from None


def of(given: dict[str, object]) -> Config:
    """The same from its tables as a dict."""
    wrong = sorted(set(given) - set(READERS))
    if wrong:
        known = ", ".join(READERS)
        raise InvalidArgument(f"there is no key {printable(wrong[0])!r}, but {known}")
    if "folders" not in given:
        raise InvalidArgument('folders is needed, for example folders = ["/run/lock"]')
    for key, told in given.items():
        texts = told if isinstance(told, list) else [told]
        if any(isinstance(each, str) and "\0" in each for each in texts):
            raise InvalidArgument(f"{key} contains a null character, which no name or word has")
    return Config(**{key: READERS[key](key, told) for key, told in given.items()})


def _refused(key: str, what: str, told: object) -> InvalidArgument:
    try:
        shown = printable(repr(told))
    except (ValueError, RecursionError):  # a number or a table that Python does not write out
        shown = "what is too long or too deep to be shown"
    return InvalidArgument(f"{key} is {what}, not {shown[:SHOWN]}{'...' * (len(shown) > SHOWN)}")


def _time(key: str, told: object) -> float:
    if isinstance(told, str) and told[-1:] in UNITS and told[:-1].replace(".", "", 1).isdecimal():
        seconds: object = float(told[:-1]) * UNITS[told[-1]]
    else:
        seconds = told
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1e9:
        return float(seconds)
    raise _refused(key, "a length of time: seconds or '30s', '5m', '1h', '2d'", told)


def _interval(key: str, told: object) -> float:
    found = _time(key, told)
    if found < 1:
        raise _refused(key, "a second or longer", told)
    return found


def _count(key: str, told: object) -> int:
    if type(told) is int and 0 <= told < 10_000:
        return told
    raise _refused(key, "a number of runs, 0 for never", told)


def _one_of(*words: str) -> Callable[[str, object], str]:
    def reader(key: str, told: object) -> str:
        if told in words:
            return str(told)
        raise _refused(key, f"one of {', '.join(words)}", told)

    return reader


def _words(key: str, told: object) -> tuple[str, ...]:
    if isinstance(told, list) and told and all(isinstance(each, str) and each for each in told):
        return tuple(told)
    raise _refused(key, "a list of texts", told)


def _folders(key: str, told: object) -> tuple[str, ...]:
    found = _words(key, told)
    for each in found:
        if not os.path.isabs(each):
            raise _refused(key, "a list of absolute paths", each)
    return found


def _path(key: str, told: object) -> str:
    if isinstance(told, str) and os.path.isabs(told):
        return told
    raise _refused(key, "an absolute path", told)


def _url(key: str, told: object) -> str:
    """L11  It may be a secret as a whole, so what is wrong is said without it."""
    from urllib.parse import urlsplit

    wrong = "it must begin with http:// or https://"
    if isinstance(told, str) and told.startswith(("http://", "https://")):
        wrong = ""
        try:
            parts = urlsplit(told)
            if not parts.hostname:
                wrong = "it names no host"
            elif parts.port == 0:
                raise ValueError("0")
            elif parts.username is not None:
                wrong = "it must not carry a user; give a token in its path or query"
        except ValueError:
            wrong = "its port is no number from 1 to 65535"
        if any(not "!" <= each <= "~" for each in told):
            wrong = "it contains a blank or another character that no URL has"
    if wrong:
        raise InvalidArgument(f"{key} is an http or https URL: {wrong}")
    return str(told)


def _address(key: str, told: object) -> str:
    if isinstance(told, str):
        host, _, port = told.rpartition(":")
        if host and port.isdecimal() and len(port) <= DIGITS and int(port) < 1 << 16:
            return told
    raise _refused(key, "HOST:PORT, for example '127.0.0.1:9467'", told)


READERS: dict[str, Callable[[str, object], Any]] = {
    "folders": _folders,
    "every": _interval,
    "stale": _one_of(ALERT, CLEAR, IGNORE),
    "suspect": _one_of(ALERT, IGNORE),
    "held": _time,
    "skips": _count,
    "silent": _time,
    "again": _time,
    "log": _path,
    "command": _words,
    "webhook": _url,
    "listen": _address,
    "textfile": _path,
}


# ------------------------------------------------------------------------------------------------
# Where `watch` tells: a log of JSON lines, a command, a webhook; numbers for Prometheus.
#
# Promise: what cannot be told is counted and tried no second time; nothing waits longer than
# PATIENCE, whatever a server answers or does not, and told is only what it took (2xx). Names are
# escaped (L11): a hostile file name makes no second line and no second label.


PATIENCE = 10.0  # seconds for a command or a server, from the first step to the last
LINE = 1000  # alerts that wait to be told
AT_ONCE = 4  # exchanges with a server that go on, though nobody waits for them any more
COMMON = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
COMMON |= getattr(os, "O_NONBLOCK", 0)  # a FIFO must not hold the watch up


class AlertSender:
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

        shown = {
            key: printable(each) if isinstance(each, str) else each
            for key, each in as_dict(alert).items()
        }
        line = json.dumps({"schema": "lifehold.alert/1", **shown})
        self.told += 1
        for name, tell in (
            ("log", self._log),
            ("command", self._command),
            ("webhook", self._webhook),
        ):
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
            self.config.command,
            input=line.encode(),
            timeout=PATIENCE,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

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

    def kept(kind: Any) -> Callable[..., Any]:
        def make(*args: object, **terms: object) -> object:
            connections.append(kind(*args, **terms))
            return connections[-1]

        return make

    class BoundedHttp(request.HTTPHandler):
        def http_open(self, req: Any) -> Any:
            return self.do_open(kept(client.HTTPConnection), req)

    class BoundedHttps(request.HTTPSHandler):
        def https_open(self, req: Any) -> Any:
            return self.do_open(kept(client.HTTPSConnection), req)

    class NoRedirect(request.HTTPRedirectHandler):
        """A redirected POST arrives as a GET without its content: it would be told to nobody."""

        def redirect_request(
            self, req: object, fp: Any, code: int, msg: str, headers: object, newurl: str
        ) -> None:
            fp.close()
            raise OSError(f"the server redirects ({code}), which is not told: use the final URL")

    opener = request.build_opener(BoundedHttp, BoundedHttps, NoRedirect)
    asked = request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with opener.open(asked, timeout=PATIENCE):
            return
    except url_error.HTTPError as error:
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


def metrics(tally: RoundTally, teller: AlertSender) -> str:
    """The numbers, as Prometheus and node-exporter read them."""
    rows: list[tuple[str, str, str, list[tuple[str, float]]]] = [
        (
            "lifehold_locks",
            "gauge",
            "Locks by state.",
            [(f'{{state="{name}"}}', count) for name, count in tally.locks.items()],
        ),
        (
            "lifehold_wrong",
            "gauge",
            "What is wrong now, by policy.",
            [(f'{{what="{name}"}}', count) for name, count in sorted(tally.wrong.items())],
        ),
        ("lifehold_oldest_hold_seconds", "gauge", "Age of the oldest hold.", [("", tally.oldest)]),
        ("lifehold_cleared_total", "counter", "Stale locks removed.", [("", tally.cleared)]),
        ("lifehold_rounds_total", "counter", "Rounds of the watch.", [("", tally.rounds)]),
        (
            "lifehold_failures_total",
            "counter",
            "Folders not read, and clears that failed.",
            [("", tally.failures)],
        ),
        ("lifehold_alerts_total", "counter", "Alerts.", [("", teller.told)]),
        (
            "lifehold_untold_total",
            "counter",
            "Alerts that one way did not take.",
            [("", teller.failures)],
        ),
        ("lifehold_round_seconds", "gauge", "How long the last round took.", [("", tally.took)]),
        ("lifehold_last_round_timestamp_seconds", "gauge", "When it was.", [("", tally.at)]),
    ]
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
