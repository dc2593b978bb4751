"""`python -m soak.lying [--count N] [KIND ...]`: two hosts on FUSE mounts that lie, one lock.

Every reply of link(2) and every second one of rename(2) and unlink(2) is a lie, attributes and
listings are 0.2 s old.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from faults.cell import Cell, Scene
from faults.mounts import lying
from faults.rows import BY_NAME
from soak.contest import contest

LIES = ("link=1", "rename=2", "unlink=2", "old=0.2")


def play(kind="generation ttl", count=10000, seconds=3600.0):
    """What came of it."""
    row = BY_NAME[kind]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        scene = Scene(Cell("lying", row.name), row, Path(folder))
        with lying(scene, *LIES) as mounts:
            base = Path(folder, "contest")
            base.mkdir()
            return contest(base, row, [mount / "lock" for mount in mounts], count, seconds)


def main():
    parser = argparse.ArgumentParser(prog="python -m soak.lying", description=__doc__)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("kinds", nargs="*", default=["generation ttl"])
    options, well = parser.parse_args(), True
    for kind in options.kinds:
        found = play(kind, options.count, options.seconds)
        print(kind, json.dumps(found), flush=True)
        well &= not found["overlaps"] and not found["not growing"] and found["least share"] >= 0.05
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
