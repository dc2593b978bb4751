"""Two hosts take one lock in turn, thousands of times: overlaps, tokens, shares, by the canary.

Each client is a process in PID, UTS and mount namespaces of its own and under a boot id of its own,
on its own mount of the store. They ask as fast as they may; who is ahead waits a moment longer.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from faults.cell import Cell, Scene
from faults.party import NEW_PIDS
from faults.spaces import OtherBoot
from soak import canary

LONG = "ttl=20.0, heartbeat=2.0, margin=2.0"  # a slow machine renews late; nobody dies here


def contest(base, row, paths, count, seconds):
    """`count` acquisitions in all, or as many as there are in so many seconds."""
    cell = Cell("contest", row.name)
    make = row.make.partition("ttl=")[0] + LONG + ")"
    scene = Scene(cell, row, Path(base))
    began = time.monotonic()
    with OtherBoot(scene, *NEW_PIDS) as under:
        wraps = [under, *[NEW_PIDS] * (len(paths) - 1)]
        clients = [scene.party(*wrap, path=path, make=make)
                   for wrap, path in zip(wraps, paths, strict=True)]  # fmt: skip
        ids = [client.ready().ask("here") for client in clients]
        for client in clients:
            client.tell("compete", count, seconds)
        told = [client.answer(within=seconds + 120) for client in clients]
        scene.close()
    found = canary.entries(scene.yard)
    shares = Counter(name for _, name in found)
    # A reader carries the token of the writer before it.
    tokens = [token for token, name in found if not (row.reads and name == "p1")]
    return {
        "acquisitions": len(found), "overlaps": len(canary.overlaps(scene.yard)),
        "not growing": canary.not_growing(tokens), "least share": min(shares.values()) / len(found),
        "troubles": [each for client in told for each in client["troubles"]][:5],
        "boot ids": len({each["boot_id"] for each in ids}), "pids": [each["pid"] for each in ids],
        "hosts": [each["host"] for each in ids], "took": round(time.monotonic() - began, 1),
    }  # fmt: skip
