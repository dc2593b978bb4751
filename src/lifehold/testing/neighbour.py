"""A lock in another process, which asks, holds and lets go as it is told, and can be killed.

It speaks JSON, one line per order and answer. It always uses the blocking face: what a claim tests
is the face on this side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

SCRIPT = """
import json, sys
from lifehold import Lock, LifeholdError
PREPARE
lock, lease = Lock(sys.argv[1], **json.loads(sys.argv[2])), None
for line in sys.stdin:
    order = json.loads(line)
    try:
        if order["do"] == "acquire":
            lease = lock.acquire(order["wait"])
            answer = {"token": lease.token, "nonce": lease.nonce}
        elif order["do"] == "check":
            answer = {"check": lease.check()}
        else:
            answer = {"release": lease.release()}
    except LifeholdError as error:
        answer = {"refused": type(error).__name__, "text": str(error)}
    print(json.dumps(answer), flush=True)
"""


class Neighbour:
    """Another process with one lock of the same name. Use it in a `with` block, which ends it."""

    def __init__(self, target: str, options: dict[str, Any], prepare: str = "") -> None:
        """`prepare`.

        A Python statement by which the child learns about a kind that is not built in.
        """
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        script = SCRIPT.replace("PREPARE", prepare)
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, target, json.dumps(options)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def acquire(self, wait: float | None = 0) -> dict[str, Any]:
        """`token` and `nonce` of its lease, or `refused`: the name of the error, and its `text`."""
        return self._order(do="acquire", wait=wait)

    def check(self) -> dict[str, Any]:
        return self._order(do="check")

    def release(self) -> dict[str, Any]:
        return self._order(do="release")

    def kill(self) -> None:
        """SIGKILL: it has no chance to let go of anything."""
        self._process.kill()
        self._process.wait()

    def _order(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())  # type: ignore[no-any-return]

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its ends of the pipes and waits
            self._process.kill()
