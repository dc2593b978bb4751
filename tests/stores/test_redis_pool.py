"""Who goes first where all connections to a Redis are in use: what frees a lock."""

from __future__ import annotations

import threading

import pytest

from ground import needs
from lifehold import connect
from lifehold.core.backend import Unreachable
from lifehold.runtime.blocking import finish
from lifehold.store.redis.wire import RedisPool
from servers.redis import until

pytestmark = needs("package:redis")
SOON = 60.0


class Line:
    """A connection whose answer comes when the test lets it."""

    where = None

    def __init__(self, plan):
        self._plan = plan

    def usable(self):
        return True

    def close(self):
        pass

    async def ask(self, commands, *_):
        (name,) = commands
        self._plan.asked.append(name)
        assert self._plan.gates[name].wait(SOON)
        return [name]


class Plan:
    limit, place, where = SOON, "there", None

    def __init__(self, names):
        self.asked, self.gates = [], {name: threading.Event() for name in names}

    def opened(self, _, *, strict):
        return Line(self)


class Asking:
    """Requests of threads to a pool of so many connections."""

    def __init__(self, most, names):
        self.plan = Plan(names)
        self.pool = RedisPool(self.plan, most)
        self.threads, self.answers = [], []

    def ask(self, name, *, urgent=False):
        def work():
            self.answers += finish(self.pool.ask([name], urgent=urgent))

        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def reached(self, *names):
        until(f"{names} are asked", lambda: self.plan.asked == list(names))

    def waiting(self, count):
        pool = self.pool
        until("they wait", lambda: len(pool._waiting) + len(pool._urgent) == count)

    def over(self):
        for gate in self.plan.gates.values():
            gate.set()
        for thread in self.threads:
            thread.join(SOON)


@pytest.fixture
def asking():
    made = Asking(1, ["held", *"abc", "leaves", "leaves too"])
    yield made
    made.over()


def test_a_release_waits_behind_nobody_who_asks(asking):
    asking.ask("held")
    asking.reached("held")
    for name in "abc":
        asking.ask(name)
    asking.waiting(3)
    asking.ask("leaves", urgent=True)
    asking.reached("held", "leaves")  # on the one connection more
    asking.plan.gates["leaves"].set()
    until("it has its answer", lambda: asking.answers == ["leaves"])
    asking.waiting(3)
    assert asking.plan.asked == ["held", "leaves"]  # that one is for nobody else


def test_of_many_releases_the_next_one_goes_before_all_who_asked_earlier(asking):
    asking.ask("held")
    asking.reached("held")
    for at, name in enumerate("abc", 1):
        asking.ask(name)
        asking.waiting(at)
    asking.ask("leaves", urgent=True)
    asking.reached("held", "leaves")
    asking.ask("leaves too", urgent=True)
    asking.waiting(4)
    asking.plan.gates["held"].set()
    asking.reached("held", "leaves", "leaves too")
    for name in ("leaves", "leaves too"):
        asking.plan.gates[name].set()
    asking.reached("held", "leaves", "leaves too", "a")
    asking.over()
    assert asking.plan.asked[3:] == ["a", "b", "c"]
    assert not asking.pool._used
    assert len(asking.pool._idle) <= 2


def test_one_who_waits_in_vain_leaves_both_lines(asking):
    asking.ask("held")
    asking.reached("held")
    asking.ask("leaves", urgent=True)
    asking.reached("held", "leaves")
    asking.plan.limit = 0.05
    for urgent in (False, True):
        with pytest.raises(Unreachable, match="were in use"):
            finish(asking.pool.ask(["a"], urgent=urgent))
    assert asking.pool._waiting == asking.pool._urgent == []


@needs("redis")
def test_what_frees_a_lock_is_asked_first_and_nothing_else_is(redis_url):
    store = connect(redis_url)
    link, asked = store._site.backend._link, []
    ask = link.ask

    async def noted(commands, until, waits, urgent=False):
        asked.append(urgent)
        return await ask(commands, until, waits, urgent)

    link.ask = noted
    try:
        lease = store.lock("job").acquire()
        store.inspect("job")
        assert not any(asked)
        asked.clear()
        lease.release()
        assert set(asked) == {True}
    finally:
        del link.ask
