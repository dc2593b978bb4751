"""Where a claim is played.

One lock's name, one face, the means to look for what was left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..core import events
from ..core.errors import LifeholdError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from pathlib import Path

    from .faces import Face

# What a kind of lock may be unable to do. Whoever lacks one says why, and the claims are named, not
# dropped.
CAPABILITIES = {
    "token": "its leases carry a fencing token",
    "shared": "exclusive=False locks shared",
    "processes": "it excludes other processes",
    "survives_crash": "a killed holder frees it",
    "lose": "it can be taken from its holder by force, which check() sees",
    "evidence": "holder() names the holder",
    "ttl": "ttl= makes its grants leases, which their holder renews",
    "fork": "the system can fork",
    "drop": "a lease that is dropped without release frees it",
}
SHAPES = "", "readwrite", "semaphore"
E = TypeVar("E", bound=BaseException)


class ClaimBroken(AssertionError):
    """A claim does not hold."""


def expect(holds: object, otherwise: str) -> None:
    """Like assert, but also under `python -O`."""
    if not holds:
        raise ClaimBroken(otherwise)


class CaughtError:
    """The error that a `refused` block ended with."""

    error: Any = None


@contextmanager
def refused(kind: type[LifeholdError]) -> Iterator[CaughtError]:
    """The block must raise exactly this error."""
    caught = CaughtError()
    try:
        yield caught
    except LifeholdError as error:
        expect(
            type(error) is kind, f"{kind.__name__} expected, got {type(error).__name__}: {error}"
        )
        caught.error = error
        return
    raise ClaimBroken(f"{kind.__name__} expected, nothing was raised")


def _by_kind(subject: Subject, face: Face, target: str, options: dict[str, object]) -> object:
    return face.lock(target, kind=subject.kind, **{**subject.options, **options})


def _file(folder: Path) -> str:
    return str(folder / "build.lock")


@dataclass(frozen=True)
class Subject:
    """A kind of lock that is to conform.

    `kind`: as in `Lock(kind=...)`; `name`: of the subject, for kinds with several; `lacks`:
    capability -> why this kind is without it; `options`: for every lock; `target`: a folder for
    this run -> the lock's name; `lose`: takes the lock of that name from its holder by force;
    `prepare`: a Python statement by which another process learns about the kind;
    `make`: how a lock is made when not by `Lock(target, kind=...)`; `remote`: a lease that was
    dropped is given back by a thread of its own, so a moment later; `shape`: "readwrite" or
    "semaphore", of which other claims are made than of a lock.
    """

    kind: str
    lacks: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    target: Callable[[Path], str] = _file
    lose: Callable[[str], object] = os.unlink
    prepare: str = ""
    make: Callable[[Subject, Face, str, dict[str, object]], object] = _by_kind
    name: str = ""
    remote: bool = False
    shape: str = ""

    def __post_init__(self) -> None:
        unknown = set(self.lacks) - set(CAPABILITIES)
        if unknown or not all(self.lacks.values()):
            raise ValueError(
                f"lacks= maps some of {sorted(CAPABILITIES)} to reasons: {dict(self.lacks)}"
            )
        if self.shape not in SHAPES:  # of which no claim speaks
            raise ValueError(f"shape= is one of {SHAPES}, not {self.shape!r}")


class Stage:
    """One claim's world."""

    def __init__(self, subject: Subject, face: Face, folder: Path) -> None:
        self.subject, self.face, self.folder = subject, face, folder
        self.target = subject.target(folder)

    def lock(self, **options: object) -> Any:
        """A new lock object for the one name of this stage."""
        return self.subject.make(self.subject, self.face, self.target, options)

    def neighbour(self) -> Neighbour:
        """Another process with a lock of that name."""
        options = {"kind": self.subject.kind, **self.subject.options}
        return Neighbour(self.target, options, self.subject.prepare)

    def lose(self) -> None:
        self.subject.lose(self.target)

    async def lost(self, lease: Any, timeout: float) -> bool:
        """`lease.lost.wait(timeout)`, awaited where it is to be."""
        found = lease.lost.wait(timeout)
        return bool(await found if hasattr(found, "__await__") else found)

    def has(self, capability: str) -> bool:
        return capability not in self.subject.lacks

    async def is_free(self) -> bool:
        """Whether a stranger gets the lock in one try."""
        stranger = self.face.start(self._try)
        return bool(await stranger.result())

    async def comes_free(self, within: float = 10.0) -> bool:
        """The same; of a remote kind, within a while."""
        for _ in range(int(within / 0.005) if self.subject.remote else 0):
            if await self.is_free():
                return True
            await self.face.sleep(0.005)
        return await self.is_free()

    async def _try(self) -> bool:
        try:
            lease = await self.face.acquire(self.lock(), 0)
        except LifeholdError:
            return False
        await self.face.release(lease)
        return True

    async def until(self, what: Callable[[], object], otherwise: str, within: float = 10.0) -> None:
        """Wait until `what()` is true."""
        for _ in range(int(within / 0.002)):
            if what():
                return
            await self.face.sleep(0.002)
        raise ClaimBroken(otherwise)


class InsideHolder:
    """Somebody beside the claim who comes in and stays until it is told to leave.

    `lease`: None until it is in.
    """

    def __init__(self, stage: Stage, wait: float | None = 0, **options: object) -> None:
        self._stage, self._wait, self._lock = stage, wait, stage.lock(**options)
        self.lease: Any = None
        self._over = self._ended = False
        self._worker = stage.face.start(self._work)
        self.cancel = self._worker.cancel

    @classmethod
    async def entered(cls, stage: Stage, wait: float | None = 0, **options: object) -> InsideHolder:
        """One that is in. Raises what kept it out."""
        found = cls(stage, wait, **options)
        await stage.until(lambda: found.lease or found._ended, "neither in nor refused", 20.0)
        if found.lease is None:
            await found.result()
        return found

    def has_come(self) -> bool:
        return self.lease is not None

    async def _work(self) -> object:
        face = self._stage.face
        try:
            self.lease = await face.acquire(self._lock, self._wait)
            while not self._over:
                await face.sleep(0.001)
            await face.release(self.lease)
        finally:
            self._ended = True
        return self.lease.token

    async def leave(self) -> Any:
        """Its token. Raises what its release met."""
        self._over = True
        return await self.result()

    async def result(self) -> object:
        return await self._worker.result()


@contextmanager
def heard() -> Iterator[list[events.Event]]:
    """The events of a block."""
    told: list[events.Event] = []
    end = events.subscribe(told.append)
    try:
        yield told
    finally:
        end()


def footprint() -> tuple[int, int]:
    """Threads, whether known to `threading` or not, and open descriptors of this process."""
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return max(len(sys._current_frames()), threading.active_count()), descriptors


@dataclass(frozen=True)
class Claim:
    """A sentence about locks, and the play that shows it.

    `timed`: it speaks of lengths of time, so on a machine that paused us in it, it shows nothing.
    `shape`: of what it speaks, "" for any kind of lock.
    """

    name: str
    needs: tuple[str, ...]
    play: Callable[[Stage], Coroutine[object, None, None]]
    timed: bool = False
    shape: str = ""


CLAIMS: list[Claim] = []


def claim(
    *needs: str, timed: bool = False, shape: str = ""
) -> Callable[[Callable[[Stage], Coroutine[object, None, None]]], object]:
    """Enter an `async def` as a claim; its name is the sentence. `needs`: capabilities."""
    assert set(needs) <= set(CAPABILITIES), needs

    def entered(play: Callable[[Stage], Coroutine[object, None, None]]) -> object:
        CLAIMS.append(Claim(play.__name__, needs, play, timed, shape))
        return play

    return entered


# ------------------------------------------------------------------------------------------------
# A lock in another process, which asks, holds and lets go as it is told, and can be killed.
#
# It speaks JSON, one line per order and answer. It always uses the blocking face: what a claim
# tests is the face on this side.


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

    def __init__(self, target: str, options: dict[str, object], prepare: str = "") -> None:
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

    def acquire(self, wait: float | None = 0) -> dict[str, object]:
        """`token` and `nonce` of its lease, or `refused`: the name of the error, and its `text`."""
        return self._order(do="acquire", wait=wait)

    def check(self) -> dict[str, object]:
        return self._order(do="check")

    def release(self) -> dict[str, object]:
        return self._order(do="release")

    def kill(self) -> None:
        """SIGKILL: it has no chance to let go of anything."""
        self._process.kill()
        self._process.wait()

    def _order(self, **order: object) -> dict[str, object]:
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
