"""`python tests/soak/watch_week.py [--locks 200] [--minutes 10]`: a week of `watch`, in minutes.

Real folders, real looks, a real webhook; only the clock is virtual: a round each ten minutes of it.
Each night a process dies and leaves its pid file for an hour; on the third day a lock is held for
eight hours; a backup is skipped from the second day to the fifth. Prints what a round cost, how
much memory the process had after each day, and which alerts came to the webhook. Ends with 1 when
one is missing or too many, or when memory grew by more than a mebibyte.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

from lifehold import Lock
from lifehold.ops import history
from lifehold.ops.watch import AlertSender, Config, Watch, metrics

MINUTE, HOUR, DAY = 60, 3600, 86400
GREW = 1 << 20  # bytes
HELD = 50  # locks that are held for all of it


class Ear(BaseHTTPRequestHandler):
    heard: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Ear.heard[f"{told['what']} {told['state']} {Path(told['path']).name}"] += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def gone() -> int:
    """The number of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def happens(folder: Path, second: int, began: float) -> None:
    """What the world does in this minute of the week."""
    day, of_day = divmod(second, DAY)
    now = began + second
    night, long = folder / "night.pid", folder / "long.pid"
    if of_day == 3 * HOUR:
        night.write_text(f"{gone()}\n")
    if of_day == 4 * HOUR:
        night.unlink(missing_ok=True)
    if day == 2 and of_day == 10 * HOUR:
        long.write_text(f"{os.getpid()}\n")
        os.utime(long, (now, now))
    if day == 2 and of_day == 18 * HOUR:
        long.unlink()
    if of_day == HOUR:
        event = history.SKIP if 1 <= day <= 4 else history.HOLD
        history.append(str(folder / "backup.lock"), history.HistoryEntry(event, "backup", now))


def expected(days: int) -> Counter[str]:
    found = Counter({"stale begun night.pid": days, "stale ended night.pid": days})
    for number in range(HELD):  # all the week
        found[f"held too long begun {number}.lock"] = 1
        found[f"held too long still {number}.lock"] = days - 1
    if days > 2:
        found |= Counter({"held too long begun long.pid": 1, "held too long ended long.pid": 1})
    if days > 3:
        found["skipped begun backup.lock"] = 1
    if days > 4:
        found["skipped still backup.lock"] = 1
    if days > 5:
        found["skipped ended backup.lock"] = 1
    return found


def week(folder: Path, days: int, step: int) -> tuple[list[int], float, float, Watch]:
    """Memory day by day, and seconds of processor and of the clock."""
    server = HTTPServer(("127.0.0.1", 0), Ear)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = Config(
        (str(folder),), held=6.0 * HOUR, webhook=f"http://127.0.0.1:{server.server_port}/"
    )
    teller = AlertSender(config)
    watch = Watch(config, teller)
    began, memory = time.time() + DAY, []
    processor, clock = time.process_time(), time.monotonic()
    for second in range(0, days * DAY, step):
        happens(folder, second, began)
        tally = watch.round(began + second)
        assert metrics(tally, teller)
        if second % DAY == DAY - step:
            memory.append(resident())
    assert teller.failures == watch.failures == 0
    server.shutdown()
    return memory, time.process_time() - processor, time.monotonic() - clock, watch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locks", type=int, default=200)
    parser.add_argument("--minutes", type=int, default=10, choices=(1, 2, 5, 10, 30, 60))
    parser.add_argument("--days", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="week-") as name:
        folder = Path(name)
        for number in range(options.locks):
            with Lock(folder / f"{number}.lock"):
                pass
        held = [Lock(folder / f"{number}.lock").acquire() for number in range(HELD)]
        memory, processor, clock, watch = week(folder, options.days, options.minutes * MINUTE)
        for lease in held:
            lease.release()
    rounds = watch.rounds
    share = processor / rounds / MINUTE
    print(f"{rounds} rounds over {options.locks} locks: {processor:.1f} s of processor, "
          f"{processor / rounds * 1000:.1f} ms each = {share:.3%} of one at a round a minute; "
          f"{clock:.0f} s by the clock")  # fmt: skip
    print("memory, MiB, at the end of each day:", [round(each / (1 << 20), 1) for each in memory])
    wrong = {key: (Ear.heard[key], wanted) for key, wanted in expected(options.days).items()
             if Ear.heard[key] != wanted}  # fmt: skip
    wrong |= {key: (count, 0) for key, count in Ear.heard.items()
              if key not in expected(options.days)}  # fmt: skip
    print(f"{sum(Ear.heard.values())} alerts came to the webhook; not as expected:", wrong)
    return 1 if wrong or memory[-1] - memory[0] > GREW else 0


if __name__ == "__main__":
    sys.exit(main())
