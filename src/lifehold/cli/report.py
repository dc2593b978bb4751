"""What became of a run, for people and programs: words on stderr, the history, one line of JSON.

Promise: each end of a run is told in one place, `Report.end`, so that the three never contradict
each other; none of them can fail it. With --json our last words are the one line (schema
lifehold.run/1, docs/reference/run.schema.json); what is said while a run is under way stays text.
"""

from __future__ import annotations

from ..core import events
from ..core.mask import masked_command
from ..runtime import clock, fork
from .render import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.errors import LifeholdError, NotAcquired
    from ..lock import Lease
    from .take import CommandLock

SCHEMA = "lifehold.run/1"
RAN, HELD, SKIPPED, LOST = "ran", "held", "skipped", "lost"
NOT_STARTED, REPLACED, ERROR = "not_started", "replaced", "error"


class Report:
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
        self, event: str, code: int | None, error: NotAcquired | None = None, reason: str = "",
        over: events.TakenOver | None = None,
    ) -> None:  # fmt: skip
        if not self.given["history"]:
            return
        history: Any = fork.lazily("lifehold.ops.history")
        process: Any = fork.lazily("lifehold.runtime.process")
        me, tokens = process.here(), {lease.name: lease for lease in self.leases}
        facts: dict[str, Any] = {"reason": reason}
        other = getattr(over or error, "holder", None)
        if other is not None:
            words: Any = fork.lazily("lifehold.core.explain")
            facts["holder"], facts["holder_since"] = words.by(other), other.since
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
            entry = history.Entry(
                event, lock._name, clock.utc_now(), code, pid=me.pid, user=me.user, host=me.host,
                command=masked_command(self.command), label=self.given["label"],
                token=lease.token if lease else None, nonce=lease.nonce if lease else None, **facts,
            )  # fmt: skip
            history.append(lock.path, entry, shared=lock.for_all)

    # ---- JSON

    def _line(
        self, outcome: str, code: int, *, child: int | None = None, reason: str = "",
        error: LifeholdError | None = None,
    ) -> None:  # fmt: skip
        json: Any = fork.lazily("json")
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


def _lock(lock: CommandLock, lease: Lease | None) -> dict[str, Any]:
    return {
        "name": lock._name,
        "path": lock.path,
        "token": lease.token if lease else None,
        "nonce": lease.nonce if lease else None,
    }


def _holder(holder: Any) -> dict[str, Any] | None:
    if holder is None:
        return None
    value: Any = fork.lazily("lifehold.core.value")
    owner = value.as_dict(holder.owner) if holder.owner else None
    return value.as_dict(holder) | {"owner": owner}  # type: ignore[no-any-return]


def _named(text: str) -> str:
    mask: Any = fork.lazily("lifehold.core.mask")
    return f"'{mask.printable(text)}'"
