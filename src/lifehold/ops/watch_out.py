"""Where `watch` tells: a log of JSON lines, a command, a webhook; numbers for Prometheus.

Promise: what cannot be told is counted and tried no second time; nothing waits longer than
PATIENCE. Names are escaped (L11): a hostile file name makes no second line and no second label.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess

from ..core.mask import printable
from ..core.value import as_dict
from ..runtime import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .watch import Alert, Tally
    from .watch_config import Config

PATIENCE = 10.0  # seconds for a command or a server
COMMON = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
COMMON |= getattr(os, "O_NONBLOCK", 0)  # a FIFO must not hold the watch up


class Teller:
    """Tells alerts as a configuration says. `failures`: how many could not be told."""

    def __init__(self, config: Config) -> None:
        self.config, self.failures, self.told = config, 0, 0

    def __call__(self, alert: Alert) -> None:
        import json

        shown = {key: printable(each) if isinstance(each, str) else each
                 for key, each in as_dict(alert).items()}  # fmt: skip
        line = json.dumps({"schema": "lifehold.alert/1", **shown})
        self.told += 1
        for wanted, tell in ((self.config.log, self._log), (self.config.command, self._command),
                             (self.config.webhook, self._webhook)):  # fmt: skip
            if wanted:
                try:
                    tell(line)
                except (OSError, subprocess.SubprocessError, ValueError):
                    self.failures += 1

    def _log(self, line: str) -> None:
        path = self.config.log
        rights.act(rights.writer_for(path), lambda: _append(path, line.encode() + b"\n"))

    def _command(self, line: str) -> None:
        subprocess.run(  # noqa: S603
            self.config.command, input=line.encode(), timeout=PATIENCE, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _webhook(self, line: str) -> None:
        from urllib import request

        asked = request.Request(  # noqa: S310  the configuration takes http and https alone
            self.config.webhook, line.encode(), {"Content-Type": "application/json"}
        )
        with request.urlopen(asked, timeout=PATIENCE):  # noqa: S310
            return


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
            os.write(fd, content)
        finally:
            os.close(fd)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
