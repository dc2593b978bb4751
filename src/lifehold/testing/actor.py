"""A client program: its actor (the seam, a runtime, words for what it holds) and its local states.

Promise: a program that reaches the world through its actor only, and is otherwise a function of
the answers it gets, can be run again from its start to any point, as often as we like.
Rule: an answer that is on record is given at once; at the first call without one the actor notes
the call and the local state and leaves the program by `Pause`. From then on the actor is dead:
every later call is part of the unwinding, happens nowhere, and raises Pause again (fstat and
close alone answer, for finalizers: the descriptor is gone).
"""

from __future__ import annotations

import copyreg
import errno
import gc
import itertools
import opcode
import os
import sys
import types
import weakref
from _thread import RLock, allocate_lock, get_ident
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

from ..core.acquire import look
from ..core.deadline import NEVER
from ..core.owner import Owner
from ..core.value import value
from ..local.files import Files
from ..runtime import process
from .model import Error
from .report import called
from .world import ClaimedHold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from types import CodeType

    from ..core.acquire import Ask

T = TypeVar("T")
Call = tuple[Any, ...]
LATE, CANCELLED, POLLED = "late", "cancelled", "polled"


class Pause(BaseException):
    """Unwinds a client program at the call whose answer is not known yet."""


class NotRepeatable(AssertionError):
    """A program made another call than before, with the same answers."""


class Actor:
    """One client's place in the model, for one run of its program from the start.

    `me`: its number, from 1; `files`: the seam; `runtime`: a `Runtime` in which waiting is a
    step; `effects`: what it entered since the last answer; `call`, `key`: where it stopped;
    `fault`: why it cannot be explored.
    """

    def __init__(
        self,
        me: int,
        party: str,
        record: Sequence[tuple[Call, object]],
        until: CodeType,
        nonces: str = "fresh",
    ) -> None:
        self.me, self.party, self.nonces = me, party, nonces
        self.files, self.runtime = ModelFiles(self), ModelRuntime(self)
        self.effects: list[tuple[ClaimedHold, int | None]] = []
        self.call: Call = ()
        self.key: Hashable = None
        self.fault: Exception | None = None
        self.places: list[
            ModelFlockWait
        ] = []  # a thread stands there, and keeps its slot as long as it does
        self._record, self._until, self._at = record, until, 0
        self._dead = False
        self._random = 0

    # ---- for the program -----------------------------------------------------------------------

    def step(self, op: str, *arguments: object) -> Any:
        """One call to the model's `do_OP`: its answer. Raises the OSError that it answers with."""
        call = (op, *arguments)
        if self._dead:
            self._over()
        if self._at == len(self._record):
            self._dead = True
            self.call = call
            try:
                self.key = (call, local_state(sys._getframe(1), self._until))
            except TypeError as error:
                self.fault = error
            self._over()
        made, answer = self._record[self._at]
        if made != call:
            self._dead = True
            self.fault = NotRepeatable(
                f"{made} before, {call} now: what else does the client look at?"
            )
            self._over()
        self._at += 1
        self.effects = []
        if isinstance(answer, Error):
            raise OSError(answer.errno, os.strerror(answer.errno), *_paths(arguments))
        return answer

    def enter(
        self,
        token: int | None = None,
        *,
        shared: bool = False,
        what: str = "lock",
        until: float = NEVER,
    ) -> None:
        """The client holds the lock from the answer it got last, or goes on to. No step of its own.

        `until`: its deadline, of a lease; with token=None the renewal of one.
        """
        if not self._dead:
            self.effects.append((ClaimedHold(self.me, self.party, shared, what, until), token))

    def leave(self, what: str = "lock") -> None:
        """The protected work ends here. A step: whatever comes before it happens while we hold."""
        self.step("leave", what)

    def alive(self, client: int) -> str:
        """What evidence says of a client: "alive", "dead" or "unknown"."""
        return str(self.step("alive", client))

    # ---- for the stage -------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether the program was left at a call."""
        return self._dead

    def end(self) -> None:
        """The run is over; finalizers may still call."""
        self._dead = True

    def random(self, count: int) -> bytes:
        """Bytes for os.urandom: new ones each time, unless the client has nonces="same"."""
        if self.nonces == "fresh":
            self._random += 1
        return (self.me * 1000 + self._random).to_bytes(max(count, 2))[-count:]

    def _over(self) -> NoReturn:
        raise Pause

    def __freeze__(self) -> Hashable:
        return (self.me, self._random, tuple(self.places))


def _paths(arguments: tuple[Any, ...]) -> tuple[object, ...]:
    """The file names of an OSError."""
    names = [item for item in arguments if isinstance(item, str)]
    return () if not names else (names[0],) if len(names) == 1 else (names[0], None, names[1])


class ModelFiles(Files):
    """The seam of a client: each call is one step of it."""

    def __init__(self, actor: Actor) -> None:
        self._seat = actor

    def __getattribute__(self, name: str) -> Any:
        # Every name is a call to the model, also those that `Files` has and those it will have.
        if name.startswith("_") or name in ("first", "there", "again"):  # made of such calls
            return object.__getattribute__(self, name)
        if name in ("anchor", "close", "fstat", "glance", "makedirs"):
            return getattr(self, f"_{name}")
        return partial(self._seat.step, name)

    def _glance(self, path: str) -> None:
        """There is no cheaper look here."""

    def _anchor(self, folder: str, opened: list[int]) -> str:
        """Nobody moves a folder here."""
        return folder

    def _close(self, fd: int) -> None:
        if not self._seat.paused:
            self._seat.step("close", fd)

    def _fstat(self, fd: int) -> object:
        if self._seat.paused:
            raise OSError(errno.EBADF, "not open any more", fd)
        return self._seat.step("fstat", fd)

    def _makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        self._seat.step("makedirs", path, exist_ok)

    def __freeze__(self) -> Hashable:
        return ()


class ModelFlockWait:
    """A client's place in the kernel's queue, as runtime/flock_wait.py keeps it for a real one."""

    def __init__(self, actor: Actor, slot: Any) -> None:
        self.actor, self.slot = actor, slot

    def leave(self) -> bool:
        """Give up. True: the lock came first and is the caller's; else the slot is closed."""
        came_first = self.actor.step("give_up", self.slot.fd)
        self.actor.places.remove(self)
        if came_first:
            return True
        self.slot.close()
        return False

    def undo(self) -> None:
        """Let go of a lock that came first."""
        self.slot.close()


class ModelChangeWait:
    """A client's place at a path that may change; runtime/change_wait.py has the real one."""

    def __init__(self, actor: Actor, sought: tuple[str, int | None]) -> None:
        self.actor, self.sought = actor, sought

    def leave(self) -> bool:
        """Look no more. Never True: nothing is granted here."""
        self.actor.step("look_away")
        return False

    def undo(self) -> None:
        """Nothing is held."""

    def __freeze__(self) -> Hashable:
        return self.sought


class ModelRuntime:
    """A client's runtime: time passes only when it waits in vain.

    `notices`: how often it may be woken to be told who holds the lock, while it has no deadline.
    """

    def __init__(self, actor: Actor, notices: int = 1) -> None:
        self._seat, self._now, self._notices = actor, 0.0, notices

    def now(self) -> float:
        return self._now  # of this client's own clock

    async def sleep(self, seconds: float) -> None:
        self._seat.step("sleep", seconds)
        self._now += seconds

    async def rung(self, ask: Ask, place: object, until: float) -> None:
        raise AssertionError("no store in a file system")

    async def block(self, ask: Ask, slot: Any, operation: int, until: float) -> bool:
        """flock(2) in a queue: two steps, and the kernel's grant is an event between them."""
        if ask.place is None:
            place = ModelFlockWait(self._seat, slot)
            ask.place = place
            self._seat.places.append(place)
            self._seat.step("stand", slot.fd, operation)
        endings = [LATE] if until == ask.deadline or self._notices else []
        endings += [CANCELLED] if ask.cancel is not None and not ask.cancelled else []
        outcome = self._seat.step("wait", slot.fd, tuple(endings))
        if outcome == LATE:
            self._notices -= until != ask.deadline
            self._now = until
            return False
        if outcome == CANCELLED:
            assert ask.cancel is not None
            ask.cancel.cancel()
            return False
        self._seat.places = [place for place in self._seat.places if place is not ask.place]
        ask.place = None
        return True

    async def changed(
        self, ask: Ask, path: str, until: float, *, blind: bool = False, pid: int | None = None
    ) -> None:
        """Two steps: to arm, and to wait for an event since then. `pid`: a client's number.

        `blind`: the client may also be woken without one, as a poll does.
        """
        sought = (path, pid)
        place = ask.place
        if not isinstance(place, ModelChangeWait) or place.sought != sought:
            if place is not None:
                place.leave()
            ask.place = ModelChangeWait(self._seat, sought)
            self._seat.step("look_out", path, pid)
            return
        late = until < NEVER and (until == ask.deadline or self._notices)
        endings = [LATE] if late else []
        endings += [CANCELLED] if ask.cancel is not None and not ask.cancelled else []
        endings += [POLLED] if blind else []
        outcome = self._seat.step("changed", tuple(endings))
        if outcome == LATE:
            self._notices -= until != ask.deadline
            self._now = until
        elif outcome == CANCELLED:
            assert ask.cancel is not None
            ask.cancel.cancel()

    async def look(self, mechanism: Any) -> Any:
        return await self.in_thread(lambda: look(mechanism), lambda _: None)

    async def in_thread(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        return call()

    def at(self, instant: float, call: Callable[[], None]) -> Callable[[], None]:
        """Nothing happens by time alone here."""
        return lambda: None

    async def shield(self, work: Coroutine[object, None, T]) -> T:
        return await work

    def __freeze__(self) -> Hashable:
        return (self._now, self._notices)


# ------------------------------------------------------------------------------------------------
# The local state of running code as a value: where each frame stands, and everything it can reach.
#
# Promise: two pauses with equal keys go on alike, given the same answers. It is kept by what goes
# in (code, position, locals, closures, the exception being handled, objects by content and by who
# shares them) and controlled by the audit of `LocalStates`, because one thing cannot be read from
# here: operands that wait on the interpreter's own stack, as the first answer in
# `(read(a), read(b))`.
# A class whose content is no state of the algorithm says so by a method `__freeze__`, which returns
# what is.


PRECALL = opcode.opmap.get("PRECALL", -1)
CALL_AFTER = 4  # bytes
PLAIN = frozenset((int, str, bytes, type(None)))
MADE_OF, AGAIN = object(), object()  # in a key, before what is not plain; before a number
MARKED = {float: object(), bool: object()}  # 1, 1.0 and True are equal, and are not the same
NEW_OBJECT = getattr(copyreg, "__newobj__")  # noqa: B009 - the stubs do not know it
CONSTANT = (types.ModuleType, types.BuiltinFunctionType, type(RLock()), type(allocate_lock()))
SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def local_state(first: types.FrameType | None, last: types.CodeType) -> tuple[Hashable, ...]:
    """A key of the frames from `first` up to, and without, the one that runs `last`."""
    seen: dict[int, int] = {}
    alive: list[object] = []  # what was given a number must not be freed and its id used again
    out: list[Hashable] = []
    frame = first
    while frame is not None and frame.f_code is not last:
        code, names = frame.f_code, frame.f_locals
        out += (code.co_qualname, code.co_filename, code.co_firstlineno, _position(frame))
        out.append(len(names))
        for name, item in names.items():
            out.append(name)
            freeze(item, seen, alive, out)
        frame = frame.f_back
    freeze(sys.exc_info()[1], seen, alive, out)
    return tuple(out)


def _position(frame: types.FrameType) -> int:
    """Where a frame stands. A call is two instructions in Python 3.11, one once it is hot."""
    at = frame.f_lasti
    return at + CALL_AFTER if at >= 0 and frame.f_code.co_code[at] == PRECALL else at


def freeze(thing: Any, seen: dict[int, int], alive: list[object], out: list[Hashable]) -> None:
    """Append `thing` by content; what may be changed, when met again, by its number at first.

    What is not plain is MADE_OF, what it is, how many parts it has, and the parts. So a key is one
    flat tuple, which is hashed and compared in C, and no two contents have the same.
    """
    kind: type[Any] = type(thing)
    if kind in PLAIN:
        out.append(thing)
    elif kind is tuple:  # the most common, and of what is in it most is plain
        _each("tuple", thing, seen, alive, out)
    elif (number := seen.get(id(thing))) is not None:
        out += (AGAIN, number)
    elif kind in MARKED:
        out += (MARKED[kind], thing)
    elif isinstance(thing, type):
        out += (MADE_OF, "class", 2, thing.__module__, thing.__qualname__)
    elif isinstance(thing, CONSTANT):
        out += (MADE_OF, "constant", 2, kind.__name__, getattr(thing, "__name__", ""))
    elif isinstance(thing, weakref.ref):
        _each("weak", (thing(),), seen, alive, out)
    elif isinstance(thing, types.MethodType):
        _each("method", (thing.__func__.__qualname__, thing.__self__), seen, alive, out)
    elif issubclass(kind, tuple):
        _each(kind.__name__, thing, seen, alive, out)
    else:
        seen[id(thing)] = len(seen)
        alive.append(thing)
        _each(kind.__qualname__, _parts(thing), seen, alive, out)


def _each(
    what: str,
    parts: tuple[object, ...],
    seen: dict[int, int],
    alive: list[object],
    out: list[Hashable],
) -> None:
    """Append all parts of something, in their order. What is quickly told is told here."""
    out += (MADE_OF, what, len(parts))
    for part in parts:
        kind = type(part)
        if kind in PLAIN:
            out.append(part)
        elif kind in MARKED:
            out += (MARKED[kind], part)
        elif (number := seen.get(id(part))) is not None:
            out += (AGAIN, number)
        else:
            freeze(part, seen, alive, out)


def _parts(thing: Any) -> tuple[object, ...]:
    """All that makes up something which may be changed."""
    if type(thing) is dict:
        return _entries(thing)
    if hasattr(thing, "__freeze__"):
        return (thing.__freeze__(),)
    if isinstance(thing, types.FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if not _is_empty(cell)]
        return (thing.__module__, thing.__qualname__, *cells)
    kind: type[Any] = type(thing)
    if issubclass(kind, dict):
        return (len(thing), *_entries(thing), *_fields(thing))
    if issubclass(kind, set | frozenset):
        return tuple(sorted(thing, key=repr))
    if issubclass(kind, list):
        return (len(thing), *thing, *_fields(thing))
    if issubclass(kind, BaseException):
        return (*thing.args, getattr(thing, "errno", None), thing.__context__, *_fields(thing))
    if issubclass(kind, SUSPENDED):
        return _suspended(thing)
    return _by_reduction(thing)


def _fields(thing: object) -> tuple[object, ...]:
    """What a subclass of a container or an exception adds to it."""
    return _entries(getattr(thing, "__dict__", {}))


def _entries(mapping: dict[Any, Any]) -> tuple[object, ...]:
    """Each key and what is kept by it, in one row."""
    return tuple(itertools.chain.from_iterable(mapping.items()))


def _suspended(thing: object) -> tuple[object, ...]:
    for prefix in ("gi", "cr", "ag"):
        if hasattr(thing, f"{prefix}_frame"):
            frame, code = getattr(thing, f"{prefix}_frame"), getattr(thing, f"{prefix}_code")
            if frame is None or getattr(thing, f"{prefix}_running"):
                return (code.co_qualname, "over" if frame is None else "running")
            return (code.co_qualname, _position(frame), tuple(frame.f_locals.items()))
    return ()


def _by_reduction(thing: object) -> tuple[object, ...]:
    """By what pickle would keep: attributes, slots, and the position of iterators of C."""
    try:
        reduced = thing.__reduce_ex__(2)
    except TypeError as error:
        raise TypeError(
            f"the explorer cannot compare two objects of {type(thing)!r}, which a client can "
            "reach: give its owner a method __freeze__, or keep it out of the client"
        ) from error
    if isinstance(reduced, tuple) and reduced[0] is NEW_OBJECT:
        return (*reduced[1], *reduced[2:])  # how most are made
    return (reduced,)


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is cell  # only the look-up matters: it fails when empty
    except ValueError:
        return True


# ------------------------------------------------------------------------------------------------
# The local states of one client program, found by running it again from its start.
#
# Promise: `next(state, answer)` is where the program stands after that answer. Equal local states
# are one state, so a program is run once for each transition between local states, however many
# worlds there are.
# Rule that keeps it: an audit. A state that was reached in several ways is gone on from in each (up
# to WAYS) with every answer, and must come to the same; otherwise the key of `local_state`
# misses something, and the exploration stops with `HiddenState`.


Program = Callable[[Actor], "set[int] | None"]
Effects = tuple[tuple[ClaimedHold, "int | None"], ...]
Way = tuple[int, Any]  # a local state, and the answer it gets
WAYS = 8
SWEEP = 100  # runs between two collections of garbage
RUNS, DONE, FAILED = "runs", "done", "failed"


class HiddenState(AssertionError):
    """Two runs that looked alike went on differently: the client keeps state that was not seen."""


@value
class LocalState:
    """A local state: its next `call`, or how it ended: the descriptors it `keeps`, the `error`."""

    status: str
    call: Call = ()
    keeps: frozenset[int] = frozenset()
    error: str = ""


class LocalStates:
    """All local states of a client that were met. `merge`: whether equal ones are one."""

    def __init__(
        self, program: Program, me: int, party: str, nonces: str, *, merge: bool = True
    ) -> None:
        self.program, self.me, self.party, self.nonces, self.merge = (
            program,
            me,
            party,
            nonces,
            merge,
        )
        self.states: list[LocalState] = []
        self.runs = 0
        self._numbers: dict[Hashable, int] = {}
        self._ways: list[list[Way]] = []  # state -> the ways it was reached in, the first one first
        self._known: dict[Way, tuple[int, Effects]] = {}
        self._answers: list[list[object]] = []  # state -> the answers that were tried in it
        self.start, too_early = self.next(-1, None)
        if too_early:
            raise ValueError(f"P{me} enters before its first call: no lock can be had without one")

    def next(self, state: int, answer: object) -> tuple[int, Effects]:
        """The state after an answer, and what the client entered on the way there."""
        way = (state, answer)
        found = self._known.get(way)
        if found is not None:
            return found
        local, key, effects = self._run(self._record(way))
        number = self._numbers.setdefault(key if self.merge else way, len(self.states))
        self._known[way] = number, effects
        if number == len(self.states):
            self.states.append(local)
            self._ways.append([])
            self._answers.append([])
        if state >= 0:
            self._answers[state].append(answer)
        if self.merge:
            for other in self._ways[state][1:] if state >= 0 else ():
                self._compare(other, answer, way)
            for tried in self._answers[number] if self._ways[number] else ():
                self._compare(way, tried, (number, tried))
        if len(self._ways[number]) < WAYS:
            self._ways[number].append(way)
        return number, effects

    def _compare(self, other: Way, answer: object, way: Way) -> None:
        """Whether the state reached by `other` goes on with `answer` as it is known to go on."""
        record = self._record(other)
        record.append((self.states[way[0]].call, answer))
        local, key, effects = self._run(record)
        number, expected = self._known[way]
        if self._numbers.get(key) != number or effects != expected:
            raise HiddenState(
                f"P{self.me}, answered {answer} by {called(record[-1][0])}, goes on with "
                f"{called(self.states[number].call)} or {called(local.call)}, and the explorer "
                "sees no difference before. Keep what it knows in local variables or attributes: "
                "an operand of an unfinished expression is out of sight"
            )

    def _record(self, way: Way) -> list[tuple[Call, object]]:
        """The calls and answers that lead through a state to the answer given in it."""
        record: list[tuple[Call, object]] = []
        state, answer = way
        while state >= 0:
            record.append((self.states[state].call, answer))
            state, answer = self._ways[state][0]
        return record[::-1]

    def _run(self, record: list[tuple[Call, object]]) -> tuple[LocalState, Hashable, Effects]:
        """The program from its start to the first call that has no answer on record."""
        self.runs += 1
        if self.runs % SWEEP == 0:
            gc.collect(0)  # what ended runs left in circles; what is younger than the last sweep
        actor = _stage.actor = Actor(
            self.me, self.party, record, LocalStates._run.__code__, self.nonces
        )
        local = LocalState(DONE)
        try:
            kept = self.program(actor)
            local = LocalState(DONE, keeps=frozenset(kept or ()))
        except Pause:
            pass
        except Exception as error:  # whatever the algorithm lets out is a finding
            local = LocalState(FAILED, error=f"{type(error).__name__}: {error}")
        effects = tuple(actor.effects)
        if actor.fault is not None:
            raise actor.fault
        if actor.paused:
            return LocalState(RUNS, actor.call), actor.key, effects
        actor.end()
        return local, local, effects


class _Stage:
    """Whose program is running: what the replaced functions below look at."""

    actor: Actor | None = None


_stage = _Stage()


@contextmanager
def repeatable() -> Generator[None]:
    """Meanwhile the shipped code is a function of its actor.

    The owner record and random bytes come from there. Other threads, and code outside a run, get
    the real ones.
    """
    mine, real_here, real_random = get_ident(), process.here, os.urandom
    hook, collects = sys.unraisablehook, gc.isenabled()
    freezes = not gc.get_freeze_count()

    def here(label: str = "") -> Owner:
        actor = _stage.actor
        return Owner(pid=actor.me, label=label) if actor is not None else real_here(label)

    def random(count: int, /) -> bytes:
        actor = _stage.actor
        return (
            actor.random(count) if actor is not None and get_ident() == mine else real_random(count)
        )

    def quiet(report: Any) -> None:
        if not issubclass(report.exc_type, Pause):  # a finalizer was the next step
            hook(report)

    _replace(real_here, here)
    os.urandom, sys.unraisablehook = random, quiet
    gc.disable()  # a finalizer runs when the last reference goes, not at some other moment
    if freezes:
        gc.freeze()  # what was there before is not looked through at the end
    try:
        yield
    finally:
        _stage.actor = None
        gc.collect(0)  # what was left in circles ends as quietly as the rest
        if freezes:
            gc.unfreeze()
        _replace(here, real_here)
        os.urandom, sys.unraisablehook = real_random, hook
        if collects:
            gc.enable()


def _replace(old: object, new: object) -> None:
    """Wherever a module of ours has imported `here` by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("lifehold.") and getattr(module, "here", None) is old:
            module.here = new  # type: ignore[attr-defined]
