"""A waiter finds out who it is while it waits, not when the lock has come."""

from __future__ import annotations

import fcntl
from _thread import get_ident

from lifehold.core.acquire import Ask
from lifehold.core.grant import Grant
from lifehold.local.kernel import KernelLock
from lifehold.runtime.blocking import BLOCKING, finish


class Watched:
    """A runtime that looks at the slot at the moment at which the kernel's queue is entered."""

    now = staticmethod(BLOCKING.now)

    def __init__(self):
        self.seen = []

    async def block(self, ask, slot, operation, until):
        self.seen.append((slot.thread, bool(slot.parts)))
        fcntl.flock(slot.fd, operation)
        return True


def test_the_record_of_a_waiter_is_made_before_it_stands_in_the_queue(tmp_path):
    runtime = Watched()
    lock = KernelLock(str(tmp_path / "lock"), runtime)
    ask = Ask(lock.path, runtime.now() + 5, None, lambda _: None)
    grant = finish(lock.wait(ask, runtime.now() + 5))
    assert isinstance(grant, Grant)
    assert runtime.seen == [(get_ident(), True)]
    assert lock.drop(grant) is None
