"""The shipped kernel lock with one step broken: the explorer must notice each of them.

A mutant is the shipped class with one method changed, so these tests say what each step is there
for.
"""

from __future__ import annotations

from typing import Any

import pytest

from lifehold.core.grant import Held
from lifehold.local.files import LOCK_NB, LOCK_SH, LOCK_UN
from lifehold.local.kernel import KernelLock
from lifehold.testing.clients import lock_client, unlinking_tool
from lifehold.testing.explore import LEAK, MUTEX, STUCK, TOKEN, WEDGED, Client, Exploration, Model


class Instead:
    """The seam with some calls exchanged."""

    def __init__(self, files: Any, **calls: Any) -> None:
        self.files, self.calls = files, calls

    def __getattr__(self, name: str) -> Any:
        return self.calls.get(name) or getattr(self.files, name)


class NoLookAfterTheFlock(KernelLock):
    """L1 dropped: whatever was locked is believed to be the file of the path."""

    def _enter(self, slot):
        real = self.files
        self.files = Instead(real, lstat=lambda path: real.fstat(slot.fd))
        try:
            return super()._enter(slot)
        finally:
            self.files = real


class LooksBeforeTheFlock(KernelLock):
    """L1 in the wrong order: the path is looked at, then locked."""

    def attempt(self):
        real = self.files
        seen = []

        def flock(fd, operation):
            try:
                seen.append(real.lstat(self.path))
            except FileNotFoundError:
                seen.append(None)
            real.flock(fd, operation)

        def lstat(path):
            if seen[-1] is None:
                raise FileNotFoundError(path)
            return seen[-1]

        self.files = Instead(real, flock=flock, lstat=lstat)
        try:
            return super().attempt()
        finally:
            self.files = real


class UnlinksAfterTheUnlock(KernelLock):
    """L7 broken: the file is removed when somebody else may hold it."""

    def drop(self, grant):
        cleanup, self.cleanup = self.cleanup, False
        try:
            lost = super().drop(grant)
        finally:
            self.cleanup = cleanup
        self.table.close_idle()
        try:
            self.files.unlink(self.path)
        except FileNotFoundError:
            pass
        return lost


class TokenOfTheClockAlone(KernelLock):
    """L4 broken: the stored token is not looked at."""

    def _enter(self, slot):
        real = self.files
        self.files = Instead(real, pread=lambda fd, length, offset: slot.expected)
        try:
            return super()._enter(slot)
        finally:
            self.files = real


class SharedForExclusive(KernelLock):
    """The wrong word to flock(2)."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self._operation, self._now_or_never = LOCK_SH, LOCK_SH | LOCK_NB


class HeldMeansMine(KernelLock):
    """A refusal taken for a grant."""

    def attempt(self):
        real = self.files

        def flock(fd, operation):
            try:
                real.flock(fd, operation)
            except BlockingIOError:
                pass

        self.files = Instead(real, flock=flock)
        try:
            return super().attempt()
        finally:
            self.files = real


class KeepsTheLockWithTheDescriptor(KernelLock):
    """The descriptor is put aside for the next time, and LOCK_UN is forgotten."""

    def drop(self, grant):
        real = self.files
        self.files = Instead(
            real, flock=lambda fd, operation: None if operation == LOCK_UN else 1 / 0
        )
        try:
            return super().drop(grant)
        finally:
            self.files = real


class StaysInTheQueue(KernelLock):
    """L6 broken: who gives up waiting forgets to leave the kernel's queue."""

    async def wait(self, ask, until):
        slot = ask.slot = ask.slot or self._idle.pop(self.path, None) or self._open()
        if await self.runtime.block(ask, slot, self._operation, until):
            return self._enter(slot)
        ask.place = None
        return Held()


def trying(
    kind: type, clients: int, *, crashes: int = 1, clock: str = "ticking", **options: Any
) -> Exploration:
    client = Client(lock_client(kind, **options))
    return Exploration(*[client] * clients, crashes=crashes, model=Model(clock=clock))


def beside_a_tool(kind: type) -> Exploration:
    ours = Client(lock_client(kind))
    tool = Client(unlinking_tool(checks=True), party="tool")
    return Exploration(ours, ours, tool, model=Model(clock="ticking"))


MUTANTS = {
    "no look after the flock, a tool unlinks": (lambda: beside_a_tool(NoLookAfterTheFlock), MUTEX),
    "no look after the flock, cleanup": (
        lambda: trying(NoLookAfterTheFlock, 3, cleanup=True),
        MUTEX,
    ),
    "looks before the flock": (lambda: trying(LooksBeforeTheFlock, 3, cleanup=True), MUTEX),
    "unlinks after the unlock": (lambda: trying(UnlinksAfterTheUnlock, 3, cleanup=True), MUTEX),
    "token of the clock alone": (lambda: trying(TokenOfTheClockAlone, 2, clock="still"), TOKEN),
    "token of the clock alone, set back": (
        lambda: trying(TokenOfTheClockAlone, 2, clock="back"),
        TOKEN,
    ),
    "shared for exclusive": (lambda: trying(SharedForExclusive, 2), MUTEX),
    "held means mine": (lambda: trying(HeldMeansMine, 2), MUTEX),
    "keeps the lock with the descriptor": (lambda: trying(KeepsTheLockWithTheDescriptor, 2), LEAK),
    "stays in the queue": (lambda: trying(StaysInTheQueue, 2, wait=3.0, cancel=True), LEAK),
    "no look after a wait": (
        lambda: trying(NoLookAfterTheFlock, 3, wait=None, cleanup=True),
        MUTEX,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_step_of_the_kernel_lock_is_noticed(name):
    game, kind = MUTANTS[name]
    report = game().run(stop_at={kind})
    assert kind in report.kinds, report


@pytest.mark.parametrize("name", ["no look after the flock, cleanup", "unlinks after the unlock"])
def test_the_schedule_of_a_mutant_is_harmless_to_the_shipped_lock(name):
    game, kind = MUTANTS[name]
    schedule = game().run(stop_at={kind}).violations[kind].schedule
    assert kind in game().replay(schedule).kinds
    shipped = trying(KernelLock, 3, cleanup=True).replay(schedule)
    assert kind not in shipped.kinds
    assert shipped.parted is not None
    assert shipped.instead


def test_the_shipped_lock_shows_none_of_it():
    shown = (
        trying(KernelLock, 3, wait=3.0, cancel=True).run().kinds
        | beside_a_tool(KernelLock).run().kinds
    )
    assert not shown & {MUTEX, TOKEN, LEAK, STUCK, WEDGED}


if __name__ == "__main__":
    for name, (game, _) in MUTANTS.items():
        print(name, game().run(), flush=True)
