"""The one whose system calls are killed or made to fail: one grant, from its beginning to its end.

    strace ... python -S -E victim.py SOURCE YARD NAME PATH MAKE

Between access("/begin") and access("/end") stand the calls of the lock and nothing else; the judges
work in the process of the test, so that no error meant for the lock hits them. Whatever happens it
tells how it went, keeps its errors with all their frames, and lives on until its stdin ends: so
nothing is freed by its end.
"""

import contextlib
import importlib
import json
import os
import sys

sys.path[:0] = [sys.argv[1], os.path.dirname(os.path.abspath(__file__))]

from actor import Actor  # noqa: E402
from making import told  # noqa: E402

from lifehold.runtime.blocking import finish  # noqa: E402


class Window:
    """What strace looks at; an error in it is kept in `errors`."""

    errors = []  # noqa: RUF012

    def __enter__(self):
        os.access("/begin", 0)
        return self

    def __exit__(self, kind, error, trace):
        os.access("/end", 0)
        if error is not None:
            self.errors.append(error)
        return True


def say(what):
    once_more(os.write, 1, json.dumps(what).encode() + b"\n")


def order():
    once_more(os.read, 0, 100)


def once_more(call, *args):
    """The call that was meant may be another one in this run, and then it hits us.

    Also in the middle of an import, which then finds no module.
    """
    try:
        call(*args)
    except (OSError, ImportError):
        importlib.invalidate_caches()
        call(*args)


def main():
    actor = Actor(*sys.argv[2:6])
    once_more(actor.warm_up)
    say("ready")
    order()
    actor.lock = None
    with Window():
        actor.acquire_only()
    lease = actor.lease
    say({"got": lease and lease.token})
    order()
    if lease is not None:
        with Window():
            lease.check()
        with Window(), contextlib.suppress(OSError):  # for the heartbeat an unknown outcome
            finish(actor.lock._mechanism.renew(lease._grant))
        say("leaving")
        order()
        with Window():
            lease.release()
    say({"errors": [told(error) for error in Window.errors]})
    order()


if __name__ == "__main__":
    main()
