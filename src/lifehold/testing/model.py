"""The modelled machine: a file system, a clock, a kernel that queues waiters, and who holds what.

Promise: `outcomes` gives every way in which a client's next call may turn out, and `events` all
that may happen by itself; nothing else ever changes a `World`.
Rule for adding a call: write `do_NAME(self, world, me, *arguments)` in a subclass. `world` is a
copy, change it; return the answer, or raise OSError and nothing has happened. When it may turn
out in several ways return `Outcomes` of (answer, world), each with a world of its own; an empty one
means that the caller is blocked. A client reaches it by `seat.step("NAME", ...)` or
`seat.files.NAME(...)`. State of its own is kept in `world.notes`. What happens by itself (a lease
runs out, the clock is set) goes to `events`.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, ClassVar

from ..local.files import LOCK_EX
from .filesystem import Error, FileSystem, Outcomes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .world import ClaimedHold, World

TICK_NS = 10_000  # of the ticking clock, with each look at it
SET_BACK_NS = 1_000_000

MUTEX, MIXED, FOREIGN = "MUTEX", "MUTEX with a foreign party", "MUTEX between foreign parties"
TOKEN = "TOKEN"  # noqa: S105  a kind of violation
OURS = "ours"


class Model(FileSystem):
    """A machine with one file system that nobody else can mount.

    `clock`: "still"; "ticking", 10 us with each look; or "back", ticking, and once set back by 1
    ms at any moment. `oracle`: what `seat.alive(client)` may answer: "right"; "late" (alive for a
    while after the death); "unsure" (late, or "unknown"). It never calls a living client dead.
    `places`: how many may hold one lock at once (a semaphore).
    """

    def __init__(
        self, *, clock: str = "still", oracle: str = "right", times: bool = False, places: int = 1
    ) -> None:
        assert clock in ("still", "ticking", "back")
        assert oracle in ("right", "late", "unsure")
        self.clock, self.oracle, self.times, self.places = clock, oracle, times, places

    def outcomes(self, world: World, me: int, call: tuple[Any, ...]) -> Outcomes:
        """Every way in which a client's call may turn out."""
        after = world.copy()
        try:
            answer = getattr(self, f"do_{call[0]}")(after, me, *call[1:])
        except OSError as error:
            return Outcomes([(Error(error.errno or 0), world)])
        ways = answer if isinstance(answer, Outcomes) else Outcomes([(answer, after)])
        for _, changed in ways:
            changed.forget_unused()
            changed.ring(world)
        return ways

    def events(self, world: World) -> Iterator[tuple[str, World]]:
        """What may happen by itself: the kernel grants a lock to one who stands in the queue."""
        for (client, fd), operation in world.queue.items():
            if not world.conflict(client, fd, operation == LOCK_EX):
                after = world.copy()
                del after.queue[client, fd]
                after.opened[client, fd] = after.opened[client, fd]._replace(lock=operation)
                yield f"the kernel grants flock({fd}) to P{client}", after

    # ---- waiting: runtime.block is these three steps -------------------------------------------

    def do_stand(self, world: World, me: int, fd: int, operation: int) -> None:
        """Begin to stand in the kernel's queue: a blocking flock(2) in a thread of its own."""
        self._opened(world, me, fd)
        world.queue[me, fd] = operation

    def do_wait(self, world: World, me: int, fd: int, endings: tuple[str, ...]) -> Outcomes:
        """Wait for the lock stood for: "granted", or before it one of `endings`."""
        if (me, fd) not in world.queue:
            return Outcomes([("granted", world)])
        return Outcomes([(ending, world) for ending in endings])

    def do_give_up(self, world: World, me: int, fd: int) -> bool:
        """Leave the queue. True: the lock came first."""
        return world.queue.pop((me, fd), None) is None

    # ---- runtime.changed is these: a watch that rings when the world around it has changed -------

    def do_look_out(self, world: World, me: int, path: str, pid: int | None) -> None:
        """Arm: from now on no change of the path, and no end of that client, is missed."""
        world.watches[me] = (path, pid, pid in world.gone)

    def do_changed(self, world: World, me: int, endings: tuple[str, ...]) -> Outcomes:
        """Sleep until an event since the last return: "changed", or one of `endings`."""
        path, pid, rung = world.watches[me]
        if rung:
            world.watches[me] = (path, pid, False)
            return Outcomes([("changed", world)])
        return Outcomes([(ending, world) for ending in endings])

    def do_look_away(self, world: World, me: int) -> None:
        """Disarm."""
        del world.watches[me]

    def do_sleep(self, world: World, me: int, seconds: float) -> None:
        """A pause is an interleaving: it changes nothing."""

    # ---- the clock, and who lives --------------------------------------------------------------

    def do_clock_ns(self, world: World, me: int) -> Outcomes | int:
        if self.clock != "still":
            world.clock += TICK_NS
        if self.clock == "back" and "clock was set back" not in world.notes:
            other = world.copy()
            other.clock -= SET_BACK_NS
            other.notes["clock was set back"] = True
            return Outcomes([(world.clock, world), (other.clock, other)])
        return world.clock

    def do_alive(self, world: World, me: int, client: int) -> Outcomes | str:
        """Whether a process lives: what evidence may say of it."""
        answers = ["dead"] if client in world.gone else ["alive"]
        if self.oracle != "right" and answers == ["dead"]:
            answers.append("alive")
        if self.oracle == "unsure":
            answers.append("unknown")
        return Outcomes([(answer, world) for answer in answers])

    # ---- holding: what the checks look at ------------------------------------------------------

    def enter(self, world: World, claim: ClaimedHold, token: int | None) -> list[str]:
        """Note that a client believes to hold the lock. Returns what is wrong with that."""
        world.holders = frozenset(
            c for c in world.holders if (c.client, c.what) != (claim.client, claim.what)
        )
        wrong = self.judge([*(c for c in world.holders if c.what == claim.what), claim])
        if token is not None and not claim.shared:
            if token <= world.token.get(claim.what, -1):
                wrong.append(TOKEN)
            world.token[claim.what] = max(token, world.token.get(claim.what, -1))
        world.holders |= {claim}
        return wrong

    def late(self, world: World, claim: ClaimedHold, token: int | None) -> list[str]:
        """A token that is handed out after its deadline: who has it may still write by it.

        So it must not be greater than that of who holds the lock by then (L4).
        """
        last = world.token.get(claim.what, -1)
        if token is None or claim.shared or token <= last:
            return []  # a guard refuses it
        world.token[claim.what] = token
        live = any(c.what == claim.what and c.client != claim.client for c in world.holders)
        return [TOKEN] if live else []

    def judge(self, claims: list[ClaimedHold]) -> list[str]:
        """What is wrong when these hold one lock at once; the last of them has just come."""
        last, wrong = claims[-1], list[str]()
        for other in claims[:-1]:
            if not (last.shared and other.shared) and len(claims) > self.places:
                ours = (last.party == OURS) + (other.party == OURS)
                wrong.append((FOREIGN, MIXED, MUTEX)[ours])
        return sorted(set(wrong))

    def do_leave(self, world: World, me: int, what: str) -> None:
        """The holder's protected work ends here."""
        world.holders = frozenset(c for c in world.holders if (c.client, c.what) != (me, what))


class NetworkModel(Model):
    """The same over NFS.

    link, rename and unlink may be done and yet be answered by an error, since the reply was lost
    and the request sent again; lstat and listdir may be answered from the client's cache, which its
    own changes empty and an open fills; open asks the server. O_EXCL and flock are exact.
    """

    LIES: ClassVar = {
        "link": errno.EEXIST,
        "link_fd": errno.EEXIST,
        "rename": errno.ENOENT,
        "rename_new": errno.ENOENT,
        "unlink": errno.ENOENT,
    }
    CHANGES = frozenset({*LIES, "mkdir", "rmdir"})
    CACHED = frozenset({"lstat", "listdir"})
    ASKS = frozenset({"open"})

    def outcomes(self, world: World, me: int, call: tuple[Any, ...]) -> Outcomes:
        """As on one machine, and what a file server adds to it."""
        op, key = call[0], (me, *call)
        ways = super().outcomes(world, me, call)
        if op in self.LIES:
            done = [after for answer, after in ways if not isinstance(answer, Error)]
            ways += [(Error(self.LIES[op]), after.copy()) for after in done]
        elif op in self.CACHED:
            ways = self._from_cache(world, key, ways)
        elif op in self.ASKS:
            ways = Outcomes((answer, after.copy()) for answer, after in ways)
            for _, after in ways:
                after.cache[me, "lstat", call[1]] = self._answer(after, call[1])
        if op in self.CHANGES or (op == "open" and call[2] & os.O_CREAT):
            for _, after in ways:
                after.forget_cache(me)
        return ways

    def do_open(self, world: World, me: int, path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, path)
        return super().do_open(world, me, path, flags, mode)

    def do_rename_new(self, world: World, me: int, old: str, new: str) -> None:
        self.do_rename(world, me, old, new)  # there is no such call: local/files.py

    def _from_cache(self, world: World, key: tuple[Any, ...], ways: Outcomes) -> Outcomes:
        found = Outcomes()
        for answer, after in ways:
            fresh = after.copy()
            fresh.cache[key] = answer
            found.append((answer, fresh))
            if key in world.cache and world.cache[key] != answer:
                found.append((world.cache[key], world))
        return found

    def _answer(self, world: World, path: str) -> Any:
        try:
            return self._stat(world, world.found(path))
        except OSError as error:
            return Error(error.errno or 0)
