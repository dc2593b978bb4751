"""`python -m tests.soak.handover N [--seconds S]`: no wake-up is missed in N hand-overs.

Processes pass one lock on: blocking callers in their own thread and with a helper, fair ones,
threads that share an object, tasks; each with random pauses injected between the steps of a wait
(also a process in which every hundredth line pauses). Some waits are cut short by a deadline or a
cancel. Whoever gets the lock says how long it had been free while he waited. A missed wake-up is a
wait that outlives a free lock by more than LIMIT: notices come after 2 s, so nothing else would end
it earlier. Each section also looks whether it is alone and whether its token has grown.

Prints the rate, the hand-overs and what was missed; status 1 if anything was. To be run again for
any N: nothing is kept between two runs.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback

LIMIT = 1.0  # seconds, below the first notice
STUCK = 10.0  # seconds in which nobody moves, above it
FIELDS = struct.Struct("10q")
RELEASED, INSIDE, LAST, TOKEN, COUNT, TURNS, MISSED, OVERLAPS, LONGEST, GOAL = range(10)
now = time.monotonic_ns


class Board:
    """What all see. Every field but GOAL is written by who holds the lock.

    COUNT counts hand-overs, TURNS all grants.
    """

    def __init__(self, goal):
        self.memory = mmap.mmap(-1, FIELDS.size)
        self[GOAL] = goal

    def __getitem__(self, field):
        return struct.unpack_from("q", self.memory, field * 8)[0]

    def __setitem__(self, field, value):
        struct.pack_into("q", self.memory, field * 8, value)

    @property
    def over(self):
        return self[COUNT] >= self[GOAL]

    def enter(self, asked, lease):
        """In the section: who else is, and for how long we waited for a free lock."""
        released = self[RELEASED]
        free_for = now() - max(asked, released)
        me = threading.get_ident() ^ os.getpid()
        if self[INSIDE] or lease.token <= self[TOKEN]:
            self[OVERLAPS] += 1
        self[INSIDE], self[TOKEN] = me, lease.token
        self[TURNS] += 1
        if asked < released and self[LAST] != me:  # he waited, and somebody else had it
            self[COUNT] += 1
        self[LAST] = me
        self[LONGEST] = max(self[LONGEST], free_for)
        if free_for > LIMIT * 1e9:
            self[MISSED] += 1
        if self[INSIDE] != me:
            self[OVERLAPS] += 1

    def leave(self):
        self[INSIDE], self[RELEASED] = 0, now()


def inject(draw, share=0.03, longest=0.0004):
    """Pauses around the steps of a wait in this process."""
    from lifehold.runtime import blocking, eventloop, flock_wait

    def slow(call):
        def slowed(*args, **named):
            if draw.random() < share:
                time.sleep(draw.random() * longest)
            try:
                return call(*args, **named)
            finally:
                if draw.random() < share:
                    time.sleep(draw.random() * longest)

        return slowed

    for owner, name in (
        (flock_wait, "stand"), (flock_wait, "_arm"), (flock_wait.FlockThread, "start"),
        (flock_wait.FlockThread, "leave"),
        (flock_wait.FlockInPlace, "_wind"), (flock_wait.FlockInPlace, "_set"),
        (flock_wait.FlockInPlace, "_shoot"),
        (flock_wait.FlockInPlace, "_unwind"),
        (blocking.ThreadWakeup, "ring"), (blocking.ThreadWakeup, "wait"),
        (eventloop.Signal, "ring"), (flock_wait.FairTicket, "come"), (flock_wait.FairTicket, "go"),
    ):  # fmt: skip
        setattr(owner, name, slow(getattr(owner, name)))


def trace(draw):
    """One line of ours in a hundred pauses, in this thread."""

    def line(frame, event, _):
        if event == "line" and draw.random() < 0.01:
            time.sleep(draw.random() * 0.0003)
        return line

    def call(frame, event, _):
        return line if "lifehold" in frame.f_code.co_filename else None

    sys.settrace(call)


def patience(draw):
    """Mostly as long as it takes."""
    return None if draw.random() < 0.9 else draw.random() * 0.004


def rest(draw):
    """Between two turns: mostly none."""
    if draw.random() < 0.3:
        time.sleep(draw.random() * 0.0003)


def blocking(path, board, draw, traced=False, **options):
    from lifehold import Cancel, Lock, NotAcquired

    if traced:
        trace(draw)
    lock = Lock(path, **options)
    while not board.over:
        cancel = Cancel() if draw.random() < 0.05 else None
        if cancel is not None:
            timer = threading.Timer(draw.random() * 0.003, cancel.cancel)
            timer.start()
        asked = now()
        try:
            with lock.acquire(patience(draw), cancel=cancel) as lease:
                board.enter(asked, lease)
                board.leave()
            rest(draw)
        except NotAcquired:
            continue
        finally:
            if cancel is not None:
                timer.join()


def helped(path, board, draw, **options):
    from lifehold.runtime import flock_wait

    flock_wait.has_timers = False
    blocking(path, board, draw, **options)


def threads(path, board, draw, **options):
    working = [
        threading.Thread(target=blocking, args=(path, board, random.Random(draw.random())),
                         kwargs=options)
        for _ in range(3)
    ]  # fmt: skip
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()


def tasks(path, board, draw, **options):
    from lifehold import AsyncLock, NotAcquired

    async def one():
        lock = AsyncLock(path, **options)
        while not board.over:
            asked = now()
            try:
                async with asyncio.timeout(0.002 if draw.random() < 0.02 else None):
                    lease = await lock.acquire(patience(draw))
            except (NotAcquired, TimeoutError):
                continue
            board.enter(asked, lease)
            board.leave()
            await lease.release()
            await asyncio.sleep(draw.random() * 0.0005)

    async def all_of_them():
        await asyncio.gather(*(one() for _ in range(3)))

    asyncio.run(all_of_them())


PARTIES = {
    "own thread": (blocking, {}),
    "own thread, fair": (blocking, {"fair": True}),
    "own thread, lines pause": (blocking, {"traced": True}),
    "helper": (helped, {}),
    "threads": (threads, {}),
    "threads, fair": (threads, {"fair": True}),
    "tasks": (tasks, {}),
}


def party(name, path, board, seed):
    """One process. Status 1 when it meets what it should not."""
    work, options = PARTIES[name]
    draw = random.Random(seed)
    try:
        inject(draw)
        work(path, board, draw, **options)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def play(goal, seconds=None, seed=0, say=lambda _: None):
    """(grants, hand-overs, missed, overlaps, longest, failed).

    `longest`: seconds for which a lock was free while somebody waited for it.
    """
    board = Board(goal)
    began, shown = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        pids = {}
        for number, name in enumerate(PARTIES):
            pid = os.fork()
            if not pid:
                party(name, f"{folder}/lock", board, seed * 100 + number)
            pids[pid] = name
        failed, stuck, last = [], 0, (0, time.monotonic())
        while pids:
            time.sleep(0.05)
            for pid in list(pids):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    name = pids.pop(pid)
                    failed += [name] if status else []
            count, at = board[COUNT], time.monotonic()
            if count != last[0]:
                last = (count, at)
            elif at - last[1] > STUCK:  # nobody moves any more
                stuck += 1
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                failed += [f"{name} hangs" for name in pids.values()]
                last = (count, at)
            if (seconds is not None and at - began > seconds) or failed:
                board[GOAL] = 0
            if at - began > shown + 30:
                shown = at - began
                say(f"{count} after {shown:.0f} s, missed {board[MISSED]}, "
                    f"longest {board[LONGEST] / 1e6:.1f} ms")  # fmt: skip
    return (
        board[TURNS],
        board[COUNT],
        board[MISSED] + stuck,
        board[OVERLAPS],
        board[LONGEST] / 1e9,
        failed,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("handovers", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seconds", type=float, help="stop then, whatever has been reached")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    began = time.monotonic()
    turns, count, missed, overlaps, longest, failed = play(
        options.handovers, options.seconds, options.seed, lambda text: print(text, flush=True)
    )
    took = time.monotonic() - began
    print(
        f"{count} hand-overs in {took:.0f} s, {count / took:.0f}/s, of {turns} grants; "
        f"seed {options.seed}"
    )
    print(f"missed wake-ups {missed}, overlaps or old tokens {overlaps}, failed {failed or 'none'}")
    print(f"a lock was free while somebody waited for it for {longest * 1000:.1f} ms at most")
    return 1 if missed or overlaps or failed else 0


if __name__ == "__main__":
    sys.exit(main())
