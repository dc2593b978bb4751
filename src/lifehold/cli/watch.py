"""`lifehold watch`: the daemon around ops/watch.py.

One thread, one loop: a round, then requests and signals until the next round is due. A second
instance of the same configuration is refused by our own lock, which is free as soon as this
process ends, however it ends. systemd is told when it is ready and that it lives (sd_notify).
"""

from __future__ import annotations

import os
import select
import signal
import socket
from functools import partial

from ..core import explain
from ..core.errors import LifeholdError, SystemRefused
from ..core.mask import printable
from ..local import lock_names
from ..ops import inventory
from ..ops import watch as watch_config
from ..ops.watch import Alert, AlertSender, Watch, metrics, write_textfile
from ..runtime import clock
from . import exits
from .options import WATCH, Usage, arguments
from .render import progress, put, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

LAST = 1.0  # seconds for alerts that are still to be told when it ends
REQUEST = 2.0  # seconds for one request
LONGEST = 4096  # bytes of one


def watch(words: list[str]) -> int:
    """The exit code of `lifehold watch WORDS`."""
    given, (typed,) = arguments(WATCH, words)
    if not typed:
        raise Usage("CONFIG is empty: an unset variable?")
    path = os.path.abspath(typed)
    if os.path.isdir(path):
        raise Usage(
            f"{path!r} is a folder, and CONFIG a TOML file that names folders: write "
            f'folders = ["{path}"] into a file, and give that'
        )
    if not os.path.lexists(path):
        shown = printable(path) + ("/" if typed.endswith("/") else "")
        raise SystemRefused(
            f"there is no file '{shown}': `lifehold help watch` says what stands in it"
        )
    config = watch_config.read(path)
    if hasattr(signal, "SIGCHLD"):  # ignored, whatever became of an alert's command would be a 0
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if given["check"]:
        put(f"'{printable(path)}' is in order: {_folders(config)}")
        return exits.DONE
    if given["once"]:
        return _once(config)
    from ..lock import Lock

    name = lock_names.address(_name(path))
    lock_names.make_folder(name.path)
    with Lock(name.path, wait=0, label=path, mode=name.mode, shared=name.shared):
        return Daemon(path, config).run()


def _name(path: str) -> str:
    """Of the lock of a configuration: one name for one file, by whatever path it was given."""
    from binascii import crc32

    real = os.path.realpath(path)
    name = os.path.basename(real).removesuffix(".toml")
    return f"watch-{name}-{crc32(os.fsencode(real)):08x}"


def _folders(config: watch_config.Config) -> str:
    count = len(config.folders)
    return f"{count} {'folder' if count == 1 else 'folders'}"


def _say(alert: Alert) -> None:
    """A line on stderr; that it goes on or has ended is said, that it begins is not."""
    plain = alert.state == watch_config.BEGUN or alert.what == watch_config.CLEARED
    what = alert.what if plain else f"{alert.what} ({alert.state})"
    say(f"{what}: {printable(alert.path)}: {printable(alert.text)}")


def _once(config: watch_config.Config) -> int:
    """One round, for cron: what is wrong is told, and its numbers are left in the text file."""
    teller = AlertSender(config, say)
    found: list[Alert] = []

    def tell(alert: Alert) -> None:
        found.append(alert)
        teller(alert)

    with progress() as seen:
        scan = partial(inventory.of_folder, deep=True, tell=seen)
        tally = Watch(config, tell, scan).round()
    for each in found:
        _say(each)
    for what, count in sorted(tally.wrong.items()):
        say(f"{count} {what}")
    if config.textfile:
        try:
            write_textfile(config.textfile, metrics(tally, teller))
        except OSError as error:
            why = f"the text file cannot be written: {error.strerror}"
            raise SystemRefused(why, errno=error.errno, filename=config.textfile) from error
    return exits.FREE if tally.wrong else exits.DONE


class Daemon:
    """The loop. `path`: of the configuration, read again on SIGHUP."""

    def __init__(self, path: str, config: watch_config.Config) -> None:
        self._path, self._teller = path, AlertSender(config, say)
        self._watch = Watch(config, self._tell)
        self._ends: bool = False
        self._reload: bool = False
        self._listener: socket.socket | None = None

    def run(self) -> int:
        """Until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._struck)
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._listen(self._watch.config.listen)
        config = self._watch.config
        say(f"watching {_folders(config)} every {explain.span(config.every)}")
        notify("READY=1")
        while not self._ends:
            self._round()
            until = clock.now() + self._watch.config.every
            while not self._called() and clock.now() < until:
                self._serve(until - clock.now())
            if self._reload:
                self._read_again()
        notify("STOPPING=1")
        if left := self._teller.end(LAST):
            say(f"{left} alerts were not told any more")
        return exits.DONE

    def _tell(self, alert: Alert) -> None:
        """On stderr, which the journal keeps, and in the ways that the configuration names."""
        _say(alert)
        self._teller.later(alert)

    def _called(self) -> bool:
        """Whether a signal wants something else than the next round."""
        return self._ends or self._reload

    def _struck(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self._ends = True

    def _round(self) -> None:
        tally = self._watch.round()
        notify(
            f"WATCHDOG=1\nSTATUS={sum(tally.locks.values())} locks, "
            f"{sum(tally.wrong.values())} wrong"
        )
        if self._watch.config.textfile:
            try:
                write_textfile(self._watch.config.textfile, metrics(tally, self._teller))
            except OSError as error:
                self._teller.failures += 1
                say(f"the text file cannot be written: {error.strerror}")

    def _read_again(self) -> None:
        """What is wrong in it leaves the old one in force."""
        self._reload = False
        notify(f"RELOADING=1\nMONOTONIC_USEC={int(clock.now() * 1e6)}")
        try:
            config = watch_config.read(self._path)
            if config.listen != self._watch.config.listen or self._listener is None:
                self._listen(config.listen)
            self._watch.config = self._teller.config = config
            say("the configuration was read again")
        except (LifeholdError, OSError) as error:
            text = error.text if isinstance(error, LifeholdError) else str(error)
            say(f"the old configuration stays in force: {text}")
        notify("READY=1")

    # ---- requests

    def _listen(self, address: str) -> None:
        """Hear requests there. Raises SystemRefused; then they are heard where they were."""
        before = self._watch.config.listen
        kept = self._listener
        if kept is not None and _port(address) == _port(before):
            kept.close()  # the port may be free by that alone
            self._listener = kept = None
        try:
            made = _listener(address)
        except SystemRefused:
            if self._listener is None and address != before:
                self._listener = _listener(before)
            raise
        if kept is not None:
            kept.close()
        self._listener = made

    def _serve(self, left: float) -> None:
        """Wait for a request or a signal, and answer the request."""
        readable: list[int | socket.socket] = [self._pipe[0]]
        if self._listener is not None:
            readable.append(self._listener)
        ready = select.select(readable, [], [], max(0.0, left))[0]
        if self._pipe[0] in ready:
            os.read(self._pipe[0], LONGEST)
        if self._listener is not None and self._listener in ready:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                caller.settimeout(REQUEST)
                try:
                    caller.sendall(self._answer(caller.recv(LONGEST)))
                except OSError:
                    return

    def _answer(self, asked: bytes) -> bytes:
        words = asked.split(b"\r\n", 1)[0].split(b" ")
        path = words[1] if len(words) > 1 and words[0] == b"GET" else b""
        tally = self._watch.tally
        if path == b"/metrics":
            return _response("200 OK", metrics(tally, self._teller))
        if path == b"/healthz":
            late = clock.utc_now() - tally.at > 3 * self._watch.config.every + 60
            return _response(
                "503 Service Unavailable" if late else "200 OK", "late\n" if late else "ok\n"
            )
        return _response("404 Not Found", "/metrics or /healthz\n")


def _port(address: str) -> str:
    return address.rpartition(":")[2].lstrip("0")


def _listener(address: str) -> socket.socket | None:
    """None for no address. Raises SystemRefused."""
    if not address:
        return None
    host, _, port = address.rpartition(":")
    try:
        made = socket.create_server((host.strip("[]"), int(port)))
    except OSError as error:
        raise SystemRefused(f"listen {address!r}: {error.strerror}", errno=error.errno) from error
    except ValueError as error:  # a name that IDNA has no form for
        raise SystemRefused(f"listen {address!r}: {error}") from error
    made.setblocking(False)
    return made


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def notify(text: str) -> None:
    """Tell systemd, where it asked to be told (sd_notify)."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    address = "\0" + where[1:] if where[0] == "@" else where
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        try:
            out.setblocking(False)
            out.sendto(text.encode(), address)
        except OSError:
            return  # it has gone, or does not read
