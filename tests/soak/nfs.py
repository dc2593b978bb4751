"""`python -m soak.nfs [--count N] [--seconds S] [KIND ...]`: locks on real NFSv4, in a guest.

Boots a kernel (nfs_machine.py) with an NFSv4 server and two mounts of it, plays the two-host faults
on them, and lets two clients take one lock N times: 40 times a second as a process of this
machine, 2.6 times under emulation. Needs about 50 MB of packages, kept in `--cache`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from soak.nfs_image import image
from soak.nfs_machine import MACHINES, Missing, Running

CACHE = Path(tempfile.gettempdir(), "lifehold-nfs-guest")


def play(cache=CACHE, count=200, seconds=60.0, kinds=("generation-ttl",), echo=None, on="uml"):
    """What the guest found, as dicts. Raises Missing."""
    machine = MACHINES[on](cache)
    initramfs = image(machine)
    order = ",".join([str(machine.slow), str(count), str(seconds), "+".join(kinds)])
    found, said = [], []
    with Running(machine, initramfs, order) as guest:
        for line in guest.lines():
            said.append(line.rstrip())
            if echo:
                echo(line.rstrip(), flush=True)
            if line.startswith("RESULT "):
                found.append(json.loads(line.removeprefix("RESULT ")))
    if not found:
        raise Missing("the guest did not come up: " + " / ".join(said[-5:]))
    return found


def main():
    parser = argparse.ArgumentParser(prog="python -m soak.nfs", description=__doc__)
    parser.add_argument("--cache", default=CACHE)
    parser.add_argument("--machine", choices=sorted(MACHINES), default="uml")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("kinds", nargs="*", default=["generation-ttl"])
    options = parser.parse_args()
    try:
        found = play(
            options.cache, options.count, options.seconds, options.kinds, print, options.machine
        )
    except Missing as why:
        sys.exit(f"not run: {why}")
    contests = [each for each in found if each["what"] == "contest"]
    cells = [each for each in found if each["what"] == "cell"]
    well = all(not each["wrong"] for each in cells) and bool(cells)
    well &= bool(contests) and all(
        not each["overlaps"] and not each["not growing"] and each["least share"] >= 0.05
        for each in contests
    )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
