"""A client program: its actor (testing/seam.py, words for what it holds) and its local states.

Promise: a program that reaches the world through its actor only, and is otherwise a function of
the answers it gets, can be run again from its start to any point, as often as we like.
Rule: an answer that is on record is given at once; at the first call without one the actor notes
the call and the local state, and leaves the program by `Pause` unless somebody knows an answer with
which it is to go on. From the Pause on the actor is dead: every later call is part of the
unwinding, happens nowhere, and raises Pause again (fstat and close alone answer, for finalizers:
the descriptor is gone).
"""

from __future__ import annotations

import copyreg
import gc
import inspect
import itertools
import opcode
import os
import sys
import types
import weakref
from _thread import RLock, allocate_lock, get_ident
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any, NoReturn

from ..core.deadline import NEVER
from ..core.owner import Owner
from ..core.value import value
from ..runtime import process
from .model import Error
from .report import called
from .seam import ModelFiles, ModelFlockWait, ModelRuntime
from .world import ClaimedHold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

Call = tuple[Any, ...]
STOP = object()  # in place of an answer


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
        record: list[tuple[Call, object]],
        until: CodeType,
        nonces: str = "fresh",
        onward: Callable[[Actor], object] | None = None,
    ) -> None:
        self.me, self.party, self.nonces = me, party, nonces
        self.files, self.runtime = ModelFiles(self), ModelRuntime(self)
        self.effects: list[tuple[ClaimedHold, int | None]] = []
        self.call: Call = ()
        self.key: Hashable = None
        self.fault: Exception | None = None
        self.places: list[ModelFlockWait] = []  # a thread stands there, and keeps its slot
        self._record, self._until, self._at = record, until, 0
        self._onward = onward or stop_here
        self._dead = self._looked_at = False
        self._random = 0

    # ---- for the program -----------------------------------------------------------------------

    def step(self, op: str, *arguments: object) -> Any:
        """One call to the model's `do_OP`: its answer. Raises the OSError that it answers with."""
        call = (op, *arguments)
        if self._dead:
            self._over()
        if self._at == len(self._record):
            self._arrive(call)
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

    def _arrive(self, call: Call) -> None:
        """At a call without an answer: note where the program stands, and ask whether to go on."""
        answer: object = STOP
        if self._looked_at:
            self.fault = NotRepeatable(f"{call} is made while the explorer looks at the client")
        else:
            self.call, self._looked_at = call, True
            try:
                self.key = (call, local_state(sys._getframe(2), self._until))
                answer = self._onward(self)
            except Exception as error:  # of the model too: it is not the client's to catch
                self.fault = self.fault or error
            self._looked_at = False
        if answer is STOP or self.fault:
            self.end()
            self._over()
        self._record.append((call, answer))

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
        self._dead, self._onward = True, stop_here

    def random(self, count: int) -> bytes:
        """Bytes for os.urandom: new ones each time, unless the client has nonces="same"."""
        if self.nonces == "fresh":
            self._random += 1
        return (self.me * 1000 + self._random).to_bytes(max(count, 2))[-count:]

    def _over(self) -> NoReturn:
        raise Pause

    def __freeze__(self) -> Hashable:
        return (self.me, self._random, tuple(self.places))


def stop_here(_: Actor) -> object:
    """No run goes on from where its record ends."""
    return STOP


def _paths(arguments: tuple[Any, ...]) -> tuple[object, ...]:
    """The file names of an OSError."""
    names = [item for item in arguments if isinstance(item, str)]
    return () if not names else (names[0],) if len(names) == 1 else (names[0], None, names[1])


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


SNAPSHOTS = sys.version_info < (3, 13)
PRECALL = opcode.opmap.get("PRECALL", -1)
CALL_AFTER = 4  # bytes
PLAIN = frozenset((int, str, bytes, type(None)))
MADE_OF, AGAIN = object(), object()  # in a key, before what is not plain; before a number
MARKED = {float: object(), bool: object()}  # 1, 1.0 and True are equal, and are not the same
NEW_OBJECT = getattr(copyreg, "__newobj__")  # noqa: B009 - the stubs do not know it
# By these a class tells pickle what makes up its objects.
REDUCES = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
CONSTANT = (types.ModuleType, types.BuiltinFunctionType, type(RLock()), type(allocate_lock()))
SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
# What is said of all objects of a class: its word, whether one may be changed, what makes one up.
Told = tuple[str, bool, Callable[[Any], tuple[object, ...]]]
_told: dict[type[Any], Told] = {}
CLASSES = 1000  # a client may make some anew in each run


def local_state(first: types.FrameType | None, last: types.CodeType) -> tuple[Hashable, ...]:
    """A key of the frames from `first` up to, and without, the one that runs `last`."""
    seen: dict[int, int] = {}
    alive: list[object] = []  # what was given a number must not be freed and its id used again
    out: list[Hashable] = []
    frame = first
    while frame is not None and frame.f_code is not last:
        code, names = frame.f_code, frame.f_locals
        where = code.co_qualname, code.co_filename, code.co_firstlineno, _position(frame)
        freeze("frame", (*where, *_entries(names)), seen, alive, out)
        forget_snapshot(code, names)
        frame = frame.f_back
    freeze("error", (sys.exc_info()[1],), seen, alive, out)
    return tuple(out)


def forget_snapshot(code: types.CodeType, names: dict[str, Any]) -> None:
    """Empty the copy that a look at `f_locals` leaves with a function's frame before Python 3.13.

    It would keep alive what the frame forgets, and list names in the order of the looks.
    """
    if SNAPSHOTS and code.co_flags & inspect.CO_OPTIMIZED:
        names.clear()


def _position(frame: types.FrameType) -> int:
    """Where a frame stands. A call is two instructions in Python 3.11, one once it is hot."""
    at = frame.f_lasti
    return at + CALL_AFTER if at >= 0 and frame.f_code.co_code[at] == PRECALL else at


def freeze(
    what: str,
    parts: tuple[object, ...],
    seen: dict[int, int],
    alive: list[object],
    out: list[Hashable],
) -> None:
    """Append all parts of something by content; what may be changed, met again, by its number.

    What is not plain is MADE_OF, what it is, how many parts it has, and the parts. So a key is one
    flat tuple, which is hashed and compared in C, and no two contents have the same.
    """
    out += (MADE_OF, what, len(parts))
    for part in parts:
        kind = type(part)
        if kind in PLAIN:
            out.append(part)
        elif kind in MARKED:
            out += (MARKED[kind], part)
        else:
            word, changes, parts_of = _told.get(kind) or _tell(part)
            if changes:
                number = seen.setdefault(id(part), len(seen))
                if number != len(alive):
                    out += (AGAIN, number)
                    continue
                alive.append(part)
            freeze(word, parts_of(part), seen, alive, out)


def _tell(thing: Any) -> Told:
    """What is said of all objects of the class of `thing`, found out once."""
    kind: type[Any] = type(thing)
    if kind is tuple:
        told: Told = "tuple", False, _itself
    elif issubclass(kind, type):
        told = "class", False, lambda it: (it.__module__, it.__qualname__)
    elif issubclass(kind, CONSTANT):
        told = "constant", False, lambda it: (kind.__name__, getattr(it, "__name__", ""))
    elif issubclass(kind, weakref.ref):
        told = "weak", False, lambda it: (it(),)
    elif issubclass(kind, types.MethodType):
        told = "method", False, lambda it: (it.__func__.__qualname__, it.__self__)
    elif issubclass(kind, tuple):
        told = kind.__name__, False, _itself
    else:
        told = f"{kind.__module__}.{kind.__qualname__}", True, _parts_of(thing)
    if len(_told) == CLASSES:
        _told.clear()
    _told[kind] = told
    return told


def _itself(thing: tuple[object, ...]) -> tuple[object, ...]:
    return thing


def _parts_of(thing: Any) -> Callable[[Any], tuple[object, ...]]:
    """What finds all that makes up such a thing, which may be changed."""
    kind: type[Any] = type(thing)
    if kind is dict:
        return _entries
    if hasattr(kind, "__freeze__"):
        return lambda it: (it.__freeze__(),)
    if issubclass(kind, types.FunctionType):
        return _of_function
    if issubclass(kind, dict):
        return lambda it: (len(it), *_entries(it), *_fields(it))
    if issubclass(kind, set | frozenset):
        return lambda it: tuple(sorted(it, key=repr))
    if issubclass(kind, list):
        return lambda it: (len(it), *it, *_fields(it))
    if issubclass(kind, BaseException):
        return lambda it: (
            *it.args, getattr(it, "errno", None), it.__context__, *_fields(it)
        )  # fmt: skip
    if issubclass(kind, SUSPENDED):
        return _suspended
    reduced = _by_reduction(thing)  # refuses what pickle would
    own = any(name in vars(each) for each in kind.__mro__[:-1] for name in REDUCES)
    return _by_reduction if own or reduced[:1] != (kind,) else _Attributes(kind)


def _of_function(thing: types.FunctionType) -> tuple[object, ...]:
    cells = [cell.cell_contents for cell in thing.__closure__ or () if not _is_empty(cell)]
    return (thing.__module__, thing.__qualname__, *cells)


class _Attributes:
    """What makes up an object that pickle would keep by its attributes and slots alone."""

    __slots__ = ("_dict", "_slots")

    def __init__(self, kind: type[Any]) -> None:
        self._slots = copyreg._slotnames(kind)  # type: ignore[attr-defined]
        self._dict = kind.__dictoffset__ != 0

    def __call__(self, thing: Any) -> tuple[object, ...]:
        found = [item for pair in thing.__dict__.items() for item in pair] if self._dict else []
        for name in self._slots:
            try:
                found += (name, getattr(thing, name))
            except AttributeError:
                continue
        return tuple(found)


def _fields(thing: object) -> tuple[object, ...]:
    """What a subclass of a container or an exception adds to it."""
    return _entries(getattr(thing, "__dict__", {}))


def _entries(mapping: Any) -> tuple[object, ...]:
    """Each key and what is kept by it, in one row."""
    return tuple(itertools.chain.from_iterable(mapping.items()))


def _suspended(thing: object) -> tuple[object, ...]:
    for prefix in ("gi", "cr", "ag"):
        if hasattr(thing, f"{prefix}_frame"):
            frame, code = getattr(thing, f"{prefix}_frame"), getattr(thing, f"{prefix}_code")
            if frame is None or getattr(thing, f"{prefix}_running"):
                return (code.co_qualname, "over" if frame is None else "running")
            names = tuple(frame.f_locals.items())
            forget_snapshot(code, frame.f_locals)
            return (code.co_qualname, _position(frame), names)
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
Guess = Callable[[Call, Effects], Any]
WAYS = 8
ONWARD = 1000  # steps that a run goes on by itself: limits are looked at between runs
REPLAYED = 16  # of a client's runs that went on are played again, from the start
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
        self.runs = self.trails = 0
        self._numbers: dict[Hashable, int] = {}
        self._ways: list[list[Way]] = []  # state -> the ways it was reached in, the first one first
        self._known: dict[Way, tuple[int, Effects]] = {}
        self._answers: list[list[object]] = []  # state -> the answers that were tried in it
        self.start, too_early = self.next(-1, None)
        if too_early:
            raise ValueError(f"P{me} enters before its first call: no lock can be had without one")

    def next(self, state: int, answer: object, guess: Guess | None = None) -> tuple[int, Effects]:
        """The state after an answer, and what the client entered on the way there.

        `guess(call, effects)`: an answer that this call will be given in time, or STOP. With it one
        run finds all new states on its way, not the next one alone.
        """
        way = (state, answer)
        found = self._known.get(way)
        if found is None:
            self._play(way, guess)
            found = self._known[way]
        return found

    def _play(self, way: Way, guess: Guess | None) -> None:
        """Run the program on a way, and on from each state that was not known before."""
        trail, again = [way], list[Way]()
        self.trails += 1

        def onward(actor: Actor) -> object:
            effects = tuple(actor.effects)
            if again:
                return STOP
            number, new = self._arrive(trail[-1], LocalState(RUNS, actor.call), actor.key, effects)
            if not new:  # it was gone on from, or will be: the same answer leads to the same
                again.extend((number, tried) for tried in self._tried(number)[:1])
                return again[0][1] if again else STOP
            answer = guess(actor.call, effects) if guess and len(trail) < ONWARD else STOP
            if answer is not STOP:
                trail.append((number, answer))
            return answer

        local, key, effects = self._run(self._record(way), onward)
        if again:
            self._same(again[0], key, effects, local.call)
        elif local.status != RUNS:
            self._arrive(trail[-1], local, key, effects)
        self._audit(trail, again)
        if self.merge and len(trail) > 1 and self.trails <= REPLAYED:
            # Each call is made again, with its answer: NotRepeatable if it is another one.
            local, key, effects = self._run(self._record(trail[-1]))
            self._same(trail[-1], key, effects, local.call)

    def _arrive(
        self, way: Way, local: LocalState, key: Hashable, effects: Effects
    ) -> tuple[int, bool]:
        """Note where a way leads: the number of that state, and whether it is a new one."""
        number = self._numbers.setdefault(key if self.merge else way, len(self.states))
        self._known[way] = number, effects
        new = number == len(self.states)
        if new:
            self.states.append(local)
            self._ways.append([])
            self._answers.append([])
        if way[0] >= 0:
            self._answers[way[0]].append(way[1])
        return number, new

    def _tried(self, state: int) -> list[object]:
        """The answers with which another way to a state must go on alike."""
        return self._answers[state] if self.merge and self._ways[state] else []

    def _audit(self, trail: list[Way], done: list[Way]) -> None:
        """Whether what was reached in several ways goes on alike. `done`: has been looked at."""
        for way in trail:
            state, answer = way
            number, _ = self._known[way]
            if self.merge:
                for other in self._ways[state][1:] if state >= 0 else ():
                    self._compare(other, answer, way)
                for tried in self._tried(number)[len(done) :]:
                    self._compare(way, tried, (number, tried))
            if len(self._ways[number]) < WAYS:
                self._ways[number].append(way)

    def _compare(self, other: Way, answer: object, way: Way) -> None:
        """Whether the state reached by `other` goes on with `answer` as it is known to go on."""
        record = self._record(other)
        record.append((self.states[way[0]].call, answer))
        local, key, effects = self._run(record)
        self._same(way, key, effects, local.call)

    def _same(self, way: Way, key: Hashable, effects: Effects, call: Call) -> None:
        """Whether a run that went another way came to where this one is known to lead."""
        number, expected = self._known[way]
        if self._numbers.get(key) != number or effects != expected:
            asked = self.states[way[0]].call
            raise HiddenState(
                f"P{self.me}, answered {way[1]} by {called(asked)}, goes on with "
                f"{called(self.states[number].call)} or {called(call)}, and the explorer "
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

    def _run(
        self,
        record: list[tuple[Call, object]],
        onward: Callable[[Actor], object] | None = None,
    ) -> tuple[LocalState, Hashable, Effects]:
        """The program from its start to a call that has no answer on record, nor from `onward`."""
        self.runs += 1
        if self.runs % SWEEP == 0:
            gc.collect(0)  # what ended runs left in circles; what is younger than the last sweep
        actor = _stage.actor = Actor(
            self.me, self.party, record, LocalStates._run.__code__, self.nonces, onward
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
        _told.clear()  # no class of a client is kept for this
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
