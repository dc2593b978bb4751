"""`lifehold run`: hold a lock while a command runs.

Promise: the lock is never free beside a running CMD, whichever of the processes is killed; CMD's
own exit code, output, input and terminal are left alone; who does not get the lock is told who has
it. Rule: CMD holds the lock itself, by inheriting the open file (cli/child.py); with -o a
supervisor does (cli/supervisor.py), and with a lease: CMD cannot renew it, so CMD must not outlive
who does. When CMD and its process group are gone (cli/child.py) the wrapper unlocks by hand, so
that what has left the group (setsid) does not go on holding the lock; only if the wrapper was
killed before, it does.
"""

from __future__ import annotations

import os

from ..core import around
from ..core.errors import LeaseLost, LifeholdError, NotAcquired, SystemRefused
from ..core.grant import Grant
from ..core.mask import masked_command, printable
from ..local import ground, lock_names
from ..runtime import clock, fork
from . import exits, target
from .child import (
    CannotStart,
    ChildCare,
    attend,
    become,
    become_subreaper,
    mention,
    see_refusal,
    spawn,
    spawn_at_terminal,
    unstartable,
)
from .options_run import RUN, contradictions, names_and_command, quick
from .signals import SignalQueue
from .terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    import signal
    from collections.abc import Callable, Sequence
    from typing import Any

    from .. import lock as face
    from ..core import deadline, events, explain, mask, ports, value
    from ..local import kernel
    from ..lock import Lease
    from ..ops import history
    from ..runtime import process
    from . import locks as run_locks
    from . import render, supervisor
    from .locks import CommandLock

    Leases = Sequence["Lease | PlainLease"]
    Locks = Sequence["CommandLock | PlainLock"]
else:
    import _signal as signal  # without `enum`, which costs 4 ms

    deadline = fork.later("lifehold.core.deadline", globals())
    events = fork.later("lifehold.core.events", globals())
    explain = fork.later("lifehold.core.explain", globals())
    face = fork.later("lifehold.lock", globals(), "face")
    history = fork.later("lifehold.ops.history", globals())
    json = fork.later("json", globals())
    kernel = fork.later("lifehold.local.kernel", globals())
    mask = fork.later("lifehold.core.mask", globals())
    ports = fork.later("lifehold.core.ports", globals())
    process = fork.later("lifehold.runtime.process", globals())
    render = fork.later("lifehold.cli.render", globals())
    run_locks = fork.later("lifehold.cli.locks", globals(), "run_locks")
    supervisor = fork.later("lifehold.cli.supervisor", globals())
    value = fork.later("lifehold.core.value", globals())


def run(words: list[str]) -> int:
    """The exit code of `lifehold run WORDS`."""
    given, rest = quick(RUN, words) or _thorough(words)
    names, command = names_and_command(given, rest, words)
    contradictions(given)
    if not hasattr(os, "posix_spawnp"):
        raise SystemRefused("`lifehold run` needs Unix; here use lifehold.Lock from Python")
    if given["skip_ok"] and given["wait"] is None:
        given["wait"] = 0.0
    plain = plain_lock(names, given)
    locks = [] if plain else run_locks.locks_of(names, given)
    report = RunReport([plain] if plain else locks, command, given)
    try:
        leases = plain.try_once() if plain else None
        if leases is None:
            locks = report.locks = locks or run_locks.locks_of(names, given)
            report.listen()
            if given["close"] or any(lock._terms for lock in locks):
                supervised()  # while nothing is held yet: an upgrade may replace it during the wait
            leases = run_locks.take(locks, given["wait"])
    except NotAcquired as error:
        code = exits.HELD if given["conflict"] is None else int(given["conflict"])
        code = exits.DONE if given["skip_ok"] else code
        report.refused(error, code)
        return code
    except LifeholdError as error:
        if report.failed(error, exits.code_of(error)):
            return exits.code_of(error)
        raise
    report.took(leases)
    if given["exclusive"] and any(lease.token is None for lease in leases):
        run_locks.tell_presence(leases)
    if given["replace"]:
        return replace(leases, command, report, given["slot_env"])
    return LockedCommand(leases, command, given, report).to_the_end()


def supervised() -> Callable[..., int]:
    """`run_supervised`, loaded where CMD does not inherit its lock. Raises SystemRefused."""
    try:
        return supervisor.run_supervised
    except ImportError as error:  # our files are gone, or others
        raise SystemRefused(f"what looks after CMD cannot be loaded: {error}") from None


def _thorough(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    from .options import arguments  # the rows of all commands: a usual line does not need them

    return arguments(RUN, words)


class LockedCommand:
    """CMD under its locks, from its start until they are let go of.

    `before`: what has run under the same locks, with whose signals and --max-hold it goes on.
    """

    def __init__(
        self,
        leases: Leases,
        command: list[str],
        given: dict[str, Any],
        report: RunReport,
        before: LockedCommand | None = None,
    ) -> None:
        self.leases, self.command, self.given, self.report = leases, command, given, report
        self.lost = ""
        self.inbox: SignalQueue = before.inbox if before else SignalQueue()
        self.terminal = Terminal()
        self.max_hold: float | None = given["max_hold"]
        until = float("inf") if self.max_hold is None else clock.now() + self.max_hold
        self.care: ChildCare = ChildCare(
            f"'{printable(command[0])}'",
            self.inbox,
            self.terminal,
            given["grace"],
            self._why_stop,
            self._stopping,
            before.care.until if before else until,
            self._look_in,
        )

    def to_the_end(self) -> int:
        """The exit code."""
        lent = self.terminal.to_be_lent()
        child = None
        outcome = RAN
        try:
            code = child = self._run(lend=lent)
        except CannotStart as refused:
            render.say(str(refused))
            code, outcome = refused.code, NOT_STARTED
        code = self._let_go(code)
        if self.lost:
            outcome = LOST
        self.report.ended(code, child, self.lost, outcome)
        self._as_typed(code, lent)
        return code

    def _run(self, *, lend: bool) -> int:
        numbers = [lease.fileno() for lease in self.leases if is_lent(lease)]
        environment = environment_of(self.leases, self.given["slot_env"])
        ends = [end for lease in self.leases if (end := lease.remaining()) is not None]
        if self.given["close"] or ends:
            # L8  Of a ttl two thirds are left when its renewals end, less the margin: CMD is gone
            # before anybody may take it over.
            grace = min([self.care.grace, *(end / 3 for end in ends)])
            late = min((margin_of(lease) / 2 for lease in self.leases), default=grace)
            try:
                run_supervised = supervised()
            except SystemRefused as error:
                raise CannotStart(str(error), exits.REFUSED) from None
            return run_supervised(self.command, environment, numbers, self.care, grace, late)
        if self.terminal.is_of(self.terminal.home):
            become_subreaper()  # before CMD, or Ctrl-Z of what it leaves at once is seen by nobody
        if lend:
            pid, heard = spawn_at_terminal(
                self.command, environment, numbers, self.inbox, self.terminal
            )
            self.report.get_ready()
            code = attend(pid, self.care)
            see_refusal(self.command, heard)
            return code
        pid = spawn(self.command, environment, numbers, self.inbox)
        self.report.get_ready()
        return attend(pid, self.care)

    def _look_in(self) -> float:
        """Seconds until a lease is over that is not renewed meanwhile."""
        left = [each for lease in self.leases if (each := lease.remaining()) is not None]
        return min(left, default=float("inf"))

    def _why_stop(self) -> str | None:
        try:
            return self._reason()
        except (ImportError, SystemRefused) as error:  # no descriptor, or our files are gone
            return f"the lock is lost or was held for too long, and why cannot be told: {error}"

    def _reason(self) -> str | None:
        for lease in self.leases:
            # L8  A look may hang on a file server until long after the deadline, and CMD with it.
            # There the heartbeat looks, in a thread of its own, and here the clock alone is asked.
            if lease.remaining() and ports.is_far(lease._lock._mechanism):
                continue
            try:
                lease.check()
            except LeaseLost as error:
                self.care.held = False
                # L8  A margin after the deadline others may take it: CMD is gone by then, however
                # late the loss was noticed.
                self.care.kill_by = min(self.care.kill_by, end_of(lease) + margin_of(lease) / 2)
                return error.text
        if clock.now() >= self.care.until:
            names = ", ".join(f"'{printable(lease.name)}'" for lease in self.leases)
            return (
                f"{names}: held for {explain.span(self.max_hold or 0.0)}, which is its --max-hold"
            )
        return None

    def _stopping(self, reason: str, left: float) -> str:
        self.lost = reason
        how = f"TERM now, KILL after {left:.3g} s" if left > 0 else "KILL now"
        return f"{reason}\nlifehold: stopping {self.care.what}: {how}"

    def _let_go(self, code: int) -> int:
        """Release the locks; the exit code, which changes when one of them turns out lost."""
        if self.care.overdue and not self.lost:
            self.lost = "lifehold was stopped until its lease was over"
        known = self.lost
        for lease in self.leases:
            try:
                lease.release()
            except LeaseLost as error:
                if not known:
                    self.lost = error.text
                    mention(
                        f"{error.text}; {self.care.what} had ended with {code} when that was "
                        "noticed"
                    )
            except (LifeholdError, ImportError) as error:
                mention(str(error))  # what CMD did is done, and a lease runs out by itself
        return exits.LOST if known or (self.lost and code == 0) else code

    def _as_typed(self, code: int, lent: bool) -> None:
        """Pass on what was typed to CMD alone, and ended it: to us, and to a script around us."""
        typed = (exits.SIGNAL + signal.SIGINT, exits.SIGNAL + signal.SIGQUIT)
        if code not in typed or not self.care.by_signal:  # `exit 130` is CMD's own answer
            return
        number = code - exits.SIGNAL
        if lent and self.terminal.is_of(self.terminal.home):
            os.kill(0, number)  # ours stays blocked
        if number == signal.SIGINT and (lent or self._interrupted()):
            raise KeyboardInterrupt

    def _interrupted(self) -> bool:
        """Whether Ctrl-C was typed, also if its message still waits behind that of CMD's end."""
        while not self.inbox.interrupted and self.inbox.next(0):
            pass
        return self.inbox.interrupted


def margin_of(lease: Lease | PlainLease) -> float:
    """Seconds between the end of a lease for us and for others; endless for one without a ttl."""
    if isinstance(lease, PlainLease) or lease._kept is None:
        return float("inf")
    return lease._kept.terms.margin


def end_of(lease: Lease | PlainLease) -> float:
    """The instant at which a lost lease ended for us: its deadline, or now if it has not come."""
    if isinstance(lease, PlainLease) or lease._kept is None:
        return clock.now()
    return min(clock.now(), lease._kept.deadline)


def is_lent(lease: Lease | PlainLease) -> bool:
    """Whether a descriptor holds it, of which CMD's keeper gets a copy."""
    mechanism = lease._lock._mechanism
    return not lock_names.is_store(lease.path) or (
        ports.is_kinded(mechanism) and mechanism.kind == "session"
    )


def replace(
    leases: Leases, command: list[str], report: RunReport, variable: str | None = None
) -> int:
    """-F: become CMD, which holds the locks from then on. Comes back only when that cannot be."""
    for lease in leases:
        os.set_inheritable(lease.fileno(), True)
    report.ended(exits.DONE, None, outcome=REPLACED)
    error = unstartable(command, become(command, environment_of(leases, variable), None))
    render.say(str(error))
    run_locks.let_go(leases)
    report.ended(error.code, None, outcome=NOT_STARTED)
    return error.code


def environment_of(leases: Leases, variable: str | None = None) -> dict[str, str]:
    """What CMD finds in its environment: of several locks the first is told whole."""
    environment = dict(os.environ)
    first, held = leases[0], environment.get(around.VARIABLE, "")
    typed = getattr(first._lock, "typed", first.name)
    environment["LIFEHOLD_NAME"] = lock_names.shown(
        typed
    )  # L11  CMD finds a password where we found ours
    environment["LIFEHOLD_LOCK"] = first.path
    environment["LIFEHOLD_NONCE"] = first.nonce
    environment["LIFEHOLD_TOKEN"] = "" if first.token is None else str(first.token)
    for lease in leases:
        held = around.added(held, lease.nonce, lease.path)
    environment[around.VARIABLE] = held
    slots = getattr(first._lock, "environment", None)
    if slots is not None:
        environment |= slots(first, variable)
    return environment


# ------------------------------------------------------------------------------------------------
# The usual run, which finds its one lock free: the mechanism alone is asked.
#
# What a `Lock` can do besides, above all wait and tell who holds it, takes as long to load as half
# of Python. Rule: as soon as anything is not as usual, the `CommandLock` or the `Lease` goes on.


UNUSUAL = ("slots", "fair", "ttl", "called", "also", "store")
LONGEST = 1000  # characters of its path
ODD = ("//", "..", ":", "\0")  # in a path: `Lock` knows what they mean


class PlainLock:
    """The kernel lock of one file, for one try."""

    __slots__ = ("_mechanism", "_name", "for_all", "path", "typed")

    def __init__(
        self, typed: str, path: str, address: lock_names.Address, given: dict[str, Any]
    ) -> None:
        self.typed = self._name = typed
        self.path, self.for_all = path, address.shared
        runtime: Any = None  # of waits
        self._mechanism = kernel.KernelLock(
            path,
            runtime,
            exclusive=given["exclusive"],
            label=given["label"],
            mode=address.mode,
            shared=address.shared,
        )

    def try_once(self) -> Leases | None:
        """The one lease; None where the lock is held."""
        missing = target.first_missing(self.typed, self.path)
        if told := lock_names.make_folder(self.path):
            render.say(told)
        answer = self._mechanism.attempt()
        if not isinstance(answer, Grant):
            return None
        if missing:
            target.tell_made(missing)
        return [PlainLease(self, answer)]


class PlainLease:
    """What is asked of the lease of a run, while nothing has happened to it."""

    __slots__ = ("_grant", "_lock", "_whole")

    def __init__(self, lock: PlainLock, grant: Grant) -> None:
        self._lock, self._grant = lock, grant
        self._whole: Lease | None = None  # once something has

    @property
    def name(self) -> str:
        return self._lock._name

    @property
    def path(self) -> str:
        return self._lock.path

    @property
    def nonce(self) -> str:
        return self._grant.nonce

    @property
    def token(self) -> int | None:
        return self._grant.token

    def fileno(self) -> int:
        number: int = self._grant.handle[0].fd
        return number

    def remaining(self) -> None:
        """It does not end by itself."""

    def check(self) -> None:
        """Raises LeaseLost."""
        if self._whole is None and self._lock._mechanism.check(self._grant) is None:
            return
        self._made_whole().check()

    def release(self) -> None:
        """Let the lock go. Raises LeaseLost, SystemRefused."""
        if self._whole is not None:
            return self._whole.release()
        found = self._lock._mechanism.drop(self._grant)
        if found is not None:
            self._made_whole()._ended(found)
        return None

    def _made_whole(self) -> Lease:
        if self._whole is None:
            lock, mechanism = face.Lock.__new__(face.Lock), self._lock._mechanism
            mechanism.runtime = lock._runtime
            face.fill(lock, self.name, mechanism, None, None, None, False)
            self._whole = face.Lease(lock, self._grant, 0, 0.0)
        return self._whole


def plain_lock(names: list[str], given: dict[str, Any]) -> PlainLock | None:
    """The lock of a usual run. Raises InvalidArgument, SystemRefused."""
    if len(names) > 1 or any(given[each] for each in UNUSUAL) or around.VARIABLE in os.environ:
        return None
    typed = names[0]
    if given["kind"] not in ("auto", "kernel") or any(each in typed for each in ODD):
        return None
    address = lock_names.address(typed)
    if given["wait"]:
        deadline.seconds("wait", given["wait"])
    if address.doubles or not usual_path(address.path):
        return None
    try:
        path = os.path.abspath(address.path)
    except FileNotFoundError:  # the working folder was removed
        return None
    if given["kind"] == "auto" and ground.is_unproven(path):
        return None
    return PlainLock(typed, path, address, given)


def usual_path(path: str) -> bool:
    """Whether it is the path of a file without a question."""
    usual = path.isascii() and path[-1] != "/" and len(path) < LONGEST
    return usual and not any(each in path for each in ODD)


# ------------------------------------------------------------------------------------------------
# What became of a run, for people and programs: words on stderr, the history, one line of JSON.
#
# Promise: each end of a run is told in one place, `RunReport.end`, so that the three never
# contradict each other; none of them can fail it. With --json our last words are the one line
# (schema lifehold.run/1, docs/reference/run.schema.json); what is said during a run stays text.


SCHEMA = "lifehold.run/1"
RAN, HELD, SKIPPED, LOST = "ran", "held", "skipped", "lost"
NOT_STARTED, REPLACED, ERROR = "not_started", "replaced", "error"


class RunReport:
    """The account of one run. `began`: when it first asked for a lock."""

    def __init__(self, locks: Locks, command: list[str], given: dict[str, Any]) -> None:
        self.locks, self.command, self.given = locks, command, given
        self.began = clock.now()
        self.acquired_at: float | None = None
        self.leases: Leases = []
        self.shown = masked_command(command) if given["verbose"] or given["json"] else ""
        self.over: list[events.TakenOver] = []  # of dead holders, not noted yet
        self._deaf: Callable[[], None] | None = None

    def listen(self) -> None:
        """Hear of the dead holders whose locks are taken over."""
        if self.given["history"]:
            self._deaf = events.subscribe(self._hear)

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.TakenOver):
            self.over.append(event)

    def _note_takeovers(self) -> None:
        """While CMD has not begun: who is killed writes no line."""
        if self._deaf is not None:
            self._deaf()
        for event in self.over:
            self._history("takeover", None, over=event)
        self.over.clear()

    def verbose(self, text: str) -> None:
        """A line for who asked to hear more."""
        if self.given["verbose"]:
            render.say(text)

    def took(self, leases: Leases) -> None:
        """All locks are ours."""
        self.leases, self.acquired_at = leases, clock.now()
        self._note_takeovers()
        if self.given["verbose"]:
            for lease in leases:
                token = "no token" if lease.token is None else f"token {lease.token}"
                render.say(f"{_named(lease.name)} is ours, {token}: {_named(lease.path)}")
            render.say(f"running {self.shown}")

    def refused(self, error: NotAcquired, code: int) -> None:
        """A lock was held by someone else."""
        self._note_takeovers()
        skipped = self.given["skip_ok"]
        self._history("skip" if skipped or self.given["wait"] == 0 else "timeout", code, error)
        if self.given["json"]:
            self._line(SKIPPED if skipped else HELD, code, error=error)
            return
        render.say(error.text, prefix="")
        if skipped:
            render.say("skipped, which --skip-ok calls no failure: status 0")

    def failed(self, error: LifeholdError, code: int) -> bool:
        """Something else went wrong before CMD ran; whether that has been told here."""
        if self.given["json"]:
            self._line(ERROR, code, error=error)
        return bool(self.given["json"])

    def ended(self, code: int, child: int | None, reason: str = "", outcome: str = RAN) -> None:
        """CMD has ended, or did not begin; `reason`: why the lock was lost."""
        event = "loss" if outcome == LOST else "hold"
        self._history(event, None if outcome == REPLACED else code, reason=reason)
        if self.given["verbose"] and outcome in (RAN, LOST):
            names = ", ".join(_named(lock._name) for lock in self.locks)
            render.say(f"CMD has ended with {child} after {self._held():.3g} s; {names} let go")
        if self.given["json"]:
            self._line(outcome, code, child=child, reason=reason)

    def _held(self) -> float:
        return 0.0 if self.acquired_at is None else clock.now() - self.acquired_at

    # ---- the history

    def get_ready(self) -> bool:
        """Load what writes the history while CMD runs, which nobody waits for; whether it is."""
        if not self.given["history"]:
            return False
        try:
            _ = history.append, process.here
        except (ImportError, SystemRefused):
            return False  # no descriptor left: the next try is made when CMD has ended
        return True

    def _history(
        self,
        event: str,
        code: int | None,
        error: NotAcquired | None = None,
        reason: str = "",
        over: events.TakenOver | None = None,
    ) -> None:
        if not self.get_ready():
            return
        me, tokens = process.here(), {lease.name: lease for lease in self.leases}
        facts: dict[str, Any] = {"reason": reason}
        other = getattr(over or error, "holder", None)
        if other is not None:
            facts["holder"], facts["holder_since"] = explain.by(other), other.since
            facts["holder_pid"] = other.pid_here or (other.owner.pid if other.owner else None)
        if error is not None:
            facts["waited"] = error.waited
        elif over is not None:
            facts["reason"] = over.evidence
        else:
            facts["waited"] = (self.acquired_at or self.began) - self.began
            facts["held"] = None if code is None else self._held()
        for lock in self.locks:
            if error is not None and lock._name != error.name:
                continue  # the others were free
            if over is not None and lock.path != over.name:
                continue
            lease = tokens.get(lock._name)
            entry = history.HistoryEntry(
                event,
                lock._name,
                clock.utc_now(),
                code,
                pid=me.pid,
                user=me.user,
                host=me.host,
                command=masked_command(self.command),
                label=self.given["label"],
                token=lease.token if lease else None,
                nonce=lease.nonce if lease else None,
                **facts,
            )
            history.append(lock.path, entry, shared=lock.for_all)

    # ---- JSON

    def _line(
        self,
        outcome: str,
        code: int,
        *,
        child: int | None = None,
        reason: str = "",
        error: LifeholdError | None = None,
    ) -> None:
        tokens = {lease.name: lease for lease in self.leases}
        told = {
            "schema": SCHEMA,
            "outcome": outcome,
            "code": code,
            "child": child,
            "command": self.shown,
            "waited": round((self.acquired_at or clock.now()) - self.began, 6),
            "held": round(self._held(), 6) if self.leases and outcome != REPLACED else None,
            "locks": [_lock(lock, tokens.get(lock._name)) for lock in self.locks],
            "held_name": error.name if outcome in (HELD, SKIPPED) and error else None,
            "holder": _holder(getattr(error, "holder", None)),
            "reason": reason or None,
            "text": error.text if error is not None else None,
        }
        render.say(json.dumps(told), prefix="")


def _lock(lock: CommandLock | PlainLock, lease: Lease | PlainLease | None) -> dict[str, object]:
    return {
        "name": lock._name,
        "path": lock.path,
        "token": lease.token if lease else None,
        "nonce": lease.nonce if lease else None,
    }


def _holder(holder: Any) -> dict[str, Any] | None:
    if holder is None:
        return None
    owner = value.as_dict(holder.owner) if holder.owner else None
    return value.as_dict(holder) | {"owner": owner}


def _named(text: str) -> str:
    return f"'{mask.printable(text)}'"
