"""`python -m tests.cli.soak_wrapper_kill [N] [SEED]`: N kills of the wrapper alone, in both forms;
default 1,000."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from .killing import rounds


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    bad = 0
    for close in (False, True):
        started_at = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            played = rounds(Path(folder), count, close=close, seed=seed)
        violations = [one.violation for one in played if one.violation]
        bad += len(violations)
        running = sum(one.ran for one in played)
        print(
            f"{'run -o' if close else 'run   '}  {count} kills, {running} with CMD running, "
            f"{len(violations)} violations, {time.monotonic() - started_at:.0f} s, seed {seed}",
            *violations, sep="\n    ", flush=True,
        )  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
