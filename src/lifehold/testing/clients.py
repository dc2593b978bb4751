"""Client programs: the shipped locks as their faces drive them, and tools that share their files.

Client(lock_client(KernelLock, rounds=2))                       tries, goes on when it is held
Client(lock_client(KernelLock, wait=None, cleanup=True))        waits until it has it
Client(unlinking_tool(checks=True), party="filelock")           a peer that removes the file
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..core.acquire import Ask, Cancel, acquire
from ..core.deadline import NEVER
from ..core.grant import Grant, Held, Unknown
from ..local.files import LOCK_EX, LOCK_NB, READ_WRITE
from ..local.handles import Descriptors
from ..runtime.blocking import finish

if TYPE_CHECKING:
    from collections.abc import Callable

    from .actor import Actor, Program

PATH = "/lock"


def lock_client(
    kind: Callable[..., Any],
    *,
    path: str = PATH,
    rounds: int = 1,
    wait: float | None = 0.0,
    cancel: bool = False,
    check: bool = False,
    **options: Any,
) -> Program:
    """A program that acquires a mechanism of local/, works, and releases, `rounds` times.

    `kind`: called as the registry calls it, `kind(path, runtime, table=..., **options)`. `wait`:
    0 one try, seconds, or None until acquired, with the shipped wait loop. `cancel`: its wait may
    be cancelled at any moment. `check`: it calls `check()` once while it works, which also mends
    an emptied record.
    """
    shared = not options.get("exclusive", True)

    def program(actor: Actor) -> set[int]:
        table = Descriptors(actor.files)
        lock = kind(path, actor.runtime, table=table, **options)
        lock.inspect = lock.waiters = nobody  # told to people, and nothing is decided by them
        for _ in range(rounds):
            grant = one_round(lock, actor)
            if not isinstance(grant, Grant):
                continue
            actor.enter(grant.token, shared=shared)
            if check:
                lock.check(grant)
            actor.leave()
            lock.drop(grant)
        return {slot.fd for slot in table.idle.values()}

    def one_round(lock: Any, actor: Actor) -> Grant | Held | Unknown:
        answer: Grant | Held | Unknown = lock.attempt()
        if not isinstance(answer, Held) or wait == 0:
            return answer
        until = NEVER if wait is None else actor.runtime.now() + wait
        ask = Ask(path, until, Cancel() if cancel else None)
        return finish(acquire(lock, actor.runtime, ask, answer))

    return program


def nobody(*, held: bool = False) -> None:
    """In place of `inspect`."""


def unlinking_tool(*, path: str = PATH, checks: bool, rounds: int = 1) -> Program:
    """A peer like filelock 3: flock(2), and the file is unlinked under the lock at release.

    `checks`: whether it looks after the flock if the path still leads to its file.
    """

    def program(actor: Actor) -> None:
        files = actor.files
        for _ in range(rounds):
            fd = files.open(path, READ_WRITE | os.O_CREAT, 0o644)
            try:
                files.flock(fd, LOCK_EX | LOCK_NB)
                if not checks or leads_to(actor, path, fd):
                    actor.enter()
                    actor.leave()
                    files.unlink(path)
            except (BlockingIOError, FileNotFoundError):
                pass
            files.close(fd)

    return program


def leads_to(actor: Actor, path: str, fd: int) -> bool:
    """Whether the path leads to an open file."""
    try:
        found = actor.files.lstat(
            path
        )  # a variable, since the explorer does not see half an expression
        mine = actor.files.fstat(fd)
    except FileNotFoundError:
        return False
    return bool(found.st_ino == mine.st_ino)


def flocking_tool(*, path: str = PATH, rounds: int = 1) -> Program:
    """A peer like flock(1): it never removes the file and never looks at the path again."""

    def program(actor: Actor) -> None:
        files = actor.files
        for _ in range(rounds):
            fd = files.open(path, READ_WRITE | os.O_CREAT, 0o644)
            try:
                files.flock(fd, LOCK_EX | LOCK_NB)
                actor.enter()
                actor.leave()
            except BlockingIOError:
                pass
            files.close(fd)

    return program


def emptier(*, path: str = PATH) -> Program:
    """Somebody who empties the lock file, held or not: `: > FILE`."""

    def program(actor: Actor) -> None:
        try:
            actor.files.truncate(path, 0)
        except FileNotFoundError:
            pass

    return program


def remover(*, path: str = PATH) -> Program:
    """Somebody who removes the lock file, held or not: `rm`."""

    def program(actor: Actor) -> None:
        try:
            actor.files.unlink(path)
        except FileNotFoundError:
            pass

    return program
