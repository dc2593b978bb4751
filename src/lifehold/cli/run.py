"""`lifehold run`: hold a lock while a command runs.

Promise: the lock is never free beside a running CMD, whichever of the processes is killed; CMD's
own exit code, output, input and terminal are left alone; who does not get the lock is told who has
it. Rule: CMD holds the lock itself, by inheriting the open file (cli/child.py); with -o a
supervisor does (cli/child.py), and with a lease: CMD cannot renew it, so CMD must not outlive
who does. When CMD and its process group are gone (cli/child.py) the wrapper unlocks by hand, so
that what has left the group (setsid) does not go on holding the lock; only if the wrapper was
killed before, it does.
"""

from __future__ import annotations

import os

from ..core import around, events
from ..core.errors import (
    InvalidArgument,
    LeaseLost,
    LifeholdError,
    NotAcquired,
    SystemRefused,
    WouldBlock,
)
from ..core.mask import masked_command, printable
from ..core.ports import is_far, is_kinded
from ..described import canonical
from ..local import lock_names
from ..lock import Lock, refusal
from ..runtime import clock, fork
from . import exits, target
from .child import CannotStart, ChildCare, Terminal, attend, become, spawn, spawn_at_terminal
from .options_run import RUN, SLOTS, contradictions, names_and_command, quick
from .render import say
from .signals import SignalQueue
from .target import NoticedLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    import json
    import signal
    from typing import Any

    from ..core import explain, mask, value
    from ..lock import Lease
    from ..ops import history, who
    from ..runtime import process
    from . import notice
    from . import slots as slot_runs
else:
    import _signal as signal  # without `enum`, which costs 4 ms

    explain = fork.later("lifehold.core.explain", globals())
    history = fork.later("lifehold.ops.history", globals())
    mask = fork.later("lifehold.core.mask", globals())
    notice = fork.later("lifehold.cli.notice", globals())
    process = fork.later("lifehold.runtime.process", globals())
    slot_runs = fork.later("lifehold.cli.slots", globals(), "slot_runs")
    value = fork.later("lifehold.core.value", globals())
    who = fork.later("lifehold.ops.who", globals())
    json = fork.later("json", globals())

__all__ = ["doubles_text", "run"]


def run(words: list[str]) -> int:
    """The exit code of `lifehold run WORDS`."""
    given, rest = quick(RUN, words) or _thorough(words)
    names, command = names_and_command(given, rest)
    contradictions(given)
    if not hasattr(os, "posix_spawnp"):
        raise SystemRefused("`lifehold run` needs Unix; here use lifehold.Lock from Python")
    if given["skip_ok"] and given["wait"] is None:
        given["wait"] = 0.0
    locks = locks_of(names, given)
    report = RunReport(locks, command, given)
    try:
        leases = take(locks, given["wait"])
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
    if given["exclusive"]:
        tell_presence(leases)
    if given["replace"]:
        return replace(leases, command, report, given["slot_env"])
    return LockedCommand(leases, command, given, report).to_the_end()


def tell_presence(leases: list[Lease]) -> None:
    """That a living process holds one of the files by its presence, which no kernel lock excludes.

    A grant without a token is a look away: the file has the content of another program.
    """
    for lease in leases:
        if lease.token is not None or lock_names.is_store(lease.path):
            continue
        from ..ops.families import ProcessTable

        found = who.answer_existence(lease.name, lease.path, ProcessTable())
        if found is not None and found.state == who.HELD and found.holder is not None:
            say(
                f"{_named(lease.name)} is held by its presence, by {explain.by(found.holder)}: "
                "the kernel lock that CMD has now does not exclude that process"
            )


def _thorough(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    from .options import arguments  # the rows of all commands: a usual line does not need them

    return arguments(RUN, words)


class LockedCommand:
    """CMD under its locks, from its start until they are let go of."""

    def __init__(
        self, leases: list[Lease], command: list[str], given: dict[str, Any], report: RunReport
    ) -> None:
        self.leases, self.command, self.given, self.report = leases, command, given, report
        self.lost = ""
        self.inbox, self.terminal = SignalQueue(), Terminal()
        self.max_hold: float | None = given["max_hold"]
        self.care = ChildCare(
            f"'{printable(command[0])}'",
            self.inbox,
            self.terminal,
            given["grace"],
            self._why_stop,
            self._stopping,
            float("inf") if self.max_hold is None else clock.now() + self.max_hold,
        )

    def to_the_end(self) -> int:
        """The exit code."""
        lent = self.terminal.to_be_lent()
        child = None
        outcome = RAN
        try:
            code = child = self._run(lend=lent)
        except CannotStart as refused:
            say(str(refused))
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
            from .child import run_supervised

            # L8  Of a ttl two thirds are left when its renewals end, less the margin: CMD is gone
            # before anybody may take it over.
            grace = min([self.care.grace, *(end / 3 for end in ends)])
            return run_supervised(self.command, environment, numbers, self.care, grace)
        if lend:
            pid = spawn_at_terminal(self.command, environment, numbers, self.inbox, self.terminal)
        else:
            pid = spawn(self.command, environment, numbers, self.inbox)
        return attend(pid, self.care)

    def _why_stop(self) -> str | None:
        for lease in self.leases:
            # L8  A look may hang on a file server until long after the deadline, and CMD with it.
            # There the heartbeat looks, in a thread of its own, and here the clock alone is asked.
            if lease.remaining() and is_far(lease._lock._mechanism):
                continue
            try:
                lease.check()
            except LeaseLost as error:
                return error.text
        if clock.now() >= self.care.until:
            names = ", ".join(f"'{printable(lease.name)}'" for lease in self.leases)
            return (
                f"{names}: held for {explain.span(self.max_hold or 0.0)}, which is its --max-hold"
            )
        return None

    def _stopping(self, reason: str) -> None:
        self.lost = reason
        say(
            f"{reason}\nlifehold: stopping {self.care.what}: TERM now, KILL after "
            f"{self.care.grace:g} s"
        )

    def _let_go(self, code: int) -> int:
        """Release the locks; the exit code, which changes when one of them turns out lost."""
        known = self.lost
        for lease in self.leases:
            try:
                lease.release()
            except LeaseLost as error:
                if not known:
                    self.lost = error.text
                    say(
                        f"{error.text}; {self.care.what} had ended with {code} when that was "
                        "noticed"
                    )
            except LifeholdError as error:
                say(error.text)  # what CMD did is done, and a lease runs out by itself
        return exits.LOST if known or (self.lost and code == 0) else code

    def _as_typed(self, code: int, lent: bool) -> None:
        """Pass on what was typed to CMD alone, and ended it: to us, and to a script around us."""
        if code not in (exits.SIGNAL + signal.SIGINT, exits.SIGNAL + signal.SIGQUIT):
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


def is_lent(lease: Lease) -> bool:
    """Whether a descriptor holds it, of which CMD's keeper gets a copy."""
    mechanism = lease._lock._mechanism
    return not lock_names.is_store(lease.path) or (
        is_kinded(mechanism) and mechanism.kind == "session"
    )


def replace(
    leases: list[Lease], command: list[str], report: RunReport, variable: str | None = None
) -> int:
    """-F: become CMD, which holds the locks from then on. Comes back only when that cannot be."""
    for lease in leases:
        os.set_inheritable(lease.fileno(), True)
    report.ended(exits.DONE, None, outcome=REPLACED)
    error = CannotStart(command, become(command, environment_of(leases, variable), None))
    say(str(error))
    let_go(leases)
    report.ended(error.code, None, outcome=NOT_STARTED)
    return error.code


def environment_of(leases: list[Lease], variable: str | None = None) -> dict[str, str]:
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
# The locks of one `lifehold run`: all of them, or none.
#
# Promise: who gets past `take` holds every lock it named; on any other way out none is held. Two
# runs that name the same locks in different orders do not wait for each other: each takes them in
# the order of their canonical paths. One file under two names is one lock. Nested: a lock that the
# run around us holds is an error at once, since only our own end could free it.


class CommandLock(NoticedLock, Lock):
    """The lock of a name."""

    __slots__ = ("for_all", "notices", "typed")

    def __init__(self, typed: str, address: lock_names.Address, given: dict[str, Any]) -> None:
        more: dict[str, Any] = {"fair": True} if given["fair"] else {}
        more |= {"ttl": given["ttl"]} if given["ttl"] else {}
        super().__init__(
            address.path,
            wait=given["wait"],
            label=given["label"],
            exclusive=given["exclusive"],
            shared=address.shared,
            mode=address.mode,
            kind=given["kind"],
            **more,
        )
        self.called(typed, address)


def locks_of(names: list[str], given: dict[str, Any]) -> list[CommandLock]:
    """A lock for each name, in the order typed; none twice."""
    found: dict[str, CommandLock] = {}
    for name in names:
        address = lock_names.address(name)
        if name.startswith("memory:"):
            raise InvalidArgument(
                f"{name!r}: a store in memory is of one process, and would keep nobody out of a "
                "command: use sqlite:////PATH.db#NAME"
            )
        if address.doubles:
            say(doubles_text(name, address))
        make: Any = CommandLock
        if given["slots"]:
            if lock_names.is_store(address.path):
                raise InvalidArgument(f"{name!r} is in a store, and --slots is not: {SLOTS}")
            make = slot_runs.CommandSemaphore
        lock = make(name, address, given)
        found.setdefault(canonical(lock.path), lock)
    return list(found.values())


def take(locks: list[CommandLock], wait: float | None) -> list[Lease]:
    """Their leases, in the order of `locks`. Raises NotAcquired for the first that is held."""
    if len(locks) == 1:
        make_folder(locks[0].path)
        return [acquire(locks[0], wait)]
    leases: dict[CommandLock, Lease] = {}
    until = None if wait is None else clock.now() + wait
    try:
        for lock in sorted(locks, key=lambda each: canonical(each.path)):
            if any(_same_file(other.path, lock.path) for other in leases):
                continue  # a hard link
            make_folder(lock.path)
            left = None if until is None else max(0.0, until - clock.now())
            leases[lock] = acquire(lock, left)
    except BaseException as error:
        let_go(list(leases.values()))
        if isinstance(error, NotAcquired):
            _told_of_all(error, locks, list(leases))
        raise
    return [leases[lock] for lock in locks if lock in leases]


def make_folder(path: str) -> None:
    """The folder of names, where it is missing; what was changed there is told."""
    told = lock_names.make_folder(path)
    if told:
        say(told)


def let_go(leases: list[Lease]) -> None:
    """Release them on the way out with another error, which matters more than theirs."""
    for lease in leases:
        try:
            lease.release()
        except Exception as error:  # noqa: BLE001 - its own text
            say(str(error))


def _told_of_all(error: NotAcquired, locks: list[CommandLock], ours: list[CommandLock]) -> None:
    """The error names the lock that was held; the remedy and a line more tell of the others."""
    first, *more = (explain.quote(lock._name) for lock in locks)
    all_of_them = " ".join([*(f"--also {name}" for name in more), first])
    one = explain.quote(error.name or "")
    text = error.text.replace(f" {one} -- CMD", f" {all_of_them} -- CMD")
    if ours:
        had = ", ".join(f"'{mask.printable(lock._name)}'" for lock in ours)
        text += (
            f"\n  none   of the others is held by this run: {had} had been taken, and was let go"
        )
    error.args = (text,)


def acquire(lock: CommandLock, wait: float | None) -> Lease:
    """The lease. Raises NotAcquired, at once when only the end of ourselves could free the lock."""
    missing = target.first_missing(lock.typed, lock.path)
    outer = ancestor_of(lock.path)
    if outer is not None:
        try:
            return lock.acquire(wait=0)
        except WouldBlock:
            if still_held(outer, lock):
                raise nested(lock) from None
    asked_at = clock.now()
    try:
        lease = lock.acquire(wait)
    finally:
        if lock.notices is not None:
            lock.notices.end()
    if missing:
        target.tell_made(missing)
    if lock.notices is not None:
        after = explain.span(clock.now() - asked_at)
        say(f"'{mask.printable(lease.name)}' is ours after {after}")
    return lease


def ancestor_of(path: str) -> around.Around | None:
    """The entry of LIFEHOLD_HELD for the file at `path`, under whatever name it is reached."""
    text = os.environ.get(around.VARIABLE)
    for outer in around.parse(text) if text else ():
        if outer.path == path or _same_file(outer.path, path):
            return outer
    return None


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def still_held(outer: around.Around, lock: CommandLock) -> bool:
    """Whether what holds the lock is the grant named in LIFEHOLD_HELD.

    Nothing in the file tells a grant without a record from another: then the environment is
    believed. A wrong belief is an error at once; the other, a hang.
    """
    holder = lock.holder()
    return holder is not None and holder.nonce in (None, outer.nonce)


def nested(lock: CommandLock) -> NotAcquired:
    why = (
        "the `lifehold run` around this command holds it, until this command has ended: to wait "
        "would be to wait for ever"
    )
    remedy = "run the inner command without `lifehold run`, or under another name"
    return refusal(WouldBlock, lock._name, lock._mechanism, why, None, following=[remedy])


def doubles_text(name: str, address: lock_names.Address) -> str:
    quote = explain.quote
    others = " and ".join(quote(path) for path in address.doubles)
    if not os.path.lexists(address.path):
        return (
            f"'{name}' exists as {others}; for you it is {quote(address.path)}, and these locks "
            "do not exclude each other. Give all jobs the same LIFEHOLD_DIR"
        )
    return (
        f"'{name}' exists in more than one folder, and these locks do not exclude each "
        f"other: using {quote(address.path)}, not {others}. Give all jobs the same "
        "LIFEHOLD_DIR, or remove the file that nobody uses"
    )


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

    def __init__(self, locks: list[CommandLock], command: list[str], given: dict[str, Any]) -> None:
        self.locks, self.command, self.given = locks, command, given
        self.began = clock.now()
        self.acquired_at: float | None = None
        self.leases: list[Lease] = []
        self.shown = masked_command(command) if given["verbose"] or given["json"] else ""
        self.over: list[events.TakenOver] = []  # of dead holders, not noted yet
        self._deaf = events.subscribe(self._hear) if given["history"] else None

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
            say(text)

    def took(self, leases: list[Lease]) -> None:
        """All locks are ours."""
        self.leases, self.acquired_at = leases, clock.now()
        self._note_takeovers()
        if self.given["verbose"]:
            for lease in leases:
                token = "no token" if lease.token is None else f"token {lease.token}"
                say(f"{_named(lease.name)} is ours, {token}: {_named(lease.path)}")
            say(f"running {self.shown}")

    def refused(self, error: NotAcquired, code: int) -> None:
        """A lock was held by someone else."""
        self._note_takeovers()
        skipped = self.given["skip_ok"]
        self._history("skip" if skipped or self.given["wait"] == 0 else "timeout", code, error)
        if self.given["json"]:
            self._line(SKIPPED if skipped else HELD, code, error=error)
            return
        say(error.text, prefix="")
        if skipped:
            say("skipped, which --skip-ok calls no failure: status 0")

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
            say(f"CMD has ended with {child} after {self._held():.3g} s; {names} let go")
        if self.given["json"]:
            self._line(outcome, code, child=child, reason=reason)

    def _held(self) -> float:
        return 0.0 if self.acquired_at is None else clock.now() - self.acquired_at

    # ---- the history

    def _history(
        self,
        event: str,
        code: int | None,
        error: NotAcquired | None = None,
        reason: str = "",
        over: events.TakenOver | None = None,
    ) -> None:
        if not self.given["history"]:
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
        say(json.dumps(told), prefix="")


def _lock(lock: CommandLock, lease: Lease | None) -> dict[str, object]:
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
