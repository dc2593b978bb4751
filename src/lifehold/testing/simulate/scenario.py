"""What is simulated: the settings of the lease, the machines, the network, what goes wrong.

All lengths in seconds. A scenario and a seed say everything about a run. `checked` refuses what
makes no sense, in words; `schedule` makes the list of faults, which is all that shrinking shortens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.backend import MOST
from ...core.deadline import terms
from ...core.errors import InvalidArgument
from ...core.value import value
from .shapes import SHAPES

if TYPE_CHECKING:
    from random import Random

    from ...core.deadline import Terms

MOST_NODES = 20_000  # each is a machine with coroutines of its own; scale.py has lighter ones


@value
class Scenario:
    """One setting under test.

    The lease: `ttl`, `heartbeat` (ttl/3 when None), `margin`. The work: `nodes` that share `names`,
    each thinks for about `think`, holds for about `hold`, writes `gap` after its last look at the
    lease; who waits gives up after `patience` (None: never). `shape`: of the names, "lock",
    "readwrite" or "semaphore" of so many `permits`; of the turns of a reader/writer lock the part
    `writers` writes, and of these the part `downgrade` goes on as a reader.
    The machines: pauses of `pause` and crashes, every so often for each node (0: never), a crashed
    one is back after `restart`; with `frozen` a pause stops the node's clock too, as that of a
    virtual machine may; clocks set wrong by up to `skew`, running wrong by up to the part `drift`.
    The network: usual round trip `latency`; the part `spike` of all messages is under way for up to
    `spike_length`, the part `loss` is lost, the part `twice` of requests comes again within
    `twice_within`; links are cut every `cut_every` for about `cut`; a client gives up a request
    after `timeout`.
    The store: its clock is set back by `step` every `step_every`; every `failover_every` an
    asynchronous standby takes over after `outage`, without the writes of the last `behind`, with a
    clock that is off by `clock_behind`.
    `hands`: the store lets in who waits without being asked again, as PostgreSQL does.
    `cancel_every`: tasks that wait are cancelled so often, per node.
    """

    ttl: float = 30.0
    heartbeat: float | None = None
    margin: float | None = None
    nodes: int = 5
    names: int = 1
    shape: str = "lock"
    permits: int = 3
    writers: float = 0.25
    downgrade: float = 0.25
    hours: float = 1.0
    think: float = 5.0
    hold: float = 2.0
    gap: float = 0.05
    patience: float | None = None
    pause: float = 0.0
    pause_every: float = 0.0
    frozen: bool = False
    crash_every: float = 0.0
    restart: float = 5.0
    skew: float = 0.0
    drift: float = 0.0
    latency: float = 0.002
    spike: float = 0.0
    spike_length: float = 5.0
    loss: float = 0.0
    twice: float = 0.0
    twice_within: float = 5.0
    cut: float = 0.0
    cut_every: float = 0.0
    timeout: float = 2.0
    step: float = 0.0
    step_every: float = 0.0
    failover_every: float = 0.0
    outage: float = 1.0
    behind: float = 0.5
    clock_behind: float = 0.0
    cancel_every: float = 0.0
    hands: bool = False

    @property
    def terms(self) -> Terms:
        """Of the lease. Raises InvalidArgument."""
        made = terms(self.ttl, self.heartbeat, self.margin)
        assert made is not None
        return made

    @property
    def seconds(self) -> float:
        """How long it takes, in its own time."""
        return self.hours * 3600.0


@value
class Fault:
    """One thing that goes wrong. `node`: of whom, -1 for the store; `size`: as its kind says."""

    at: float
    kind: str
    node: int
    length: float = 0.0
    size: float = 0.0

    def __str__(self) -> str:
        who = "store" if self.node < 0 else f"n{self.node}"
        more = f", {self.size:g}" if self.size else ""
        return f"{self.at:.3f} {who} {self.kind} for {self.length:.3f} s{more}"


ZERO_OR_MORE = (
    "think",
    "gap",
    "pause",
    "pause_every",
    "crash_every",
    "restart",
    "skew",
    "spike_length",
    "twice_within",
    "cut",
    "cut_every",
    "step_every",
    "failover_every",
    "outage",
    "behind",
    "cancel_every",
)
MORE_THAN_ZERO = ("hours", "hold", "latency", "timeout")
PARTS = ("spike", "loss", "twice")


def checked(plan: Scenario) -> Scenario:
    """The same. Raises InvalidArgument, which names the setting and what it may be."""
    plan.terms  # noqa: B018 - refuses a ttl, heartbeat or margin that cannot be kept
    for name in ("nodes", "names"):
        number = getattr(plan, name)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MOST_NODES:
            raise InvalidArgument(f"{name} must be from 1 to {MOST_NODES}, not {number!r}")
    if plan.shape not in SHAPES:
        raise InvalidArgument(f"shape must be one of {', '.join(SHAPES)}, not {plan.shape!r}")
    if type(plan.permits) is not int or not 0 < plan.permits <= MOST:
        raise InvalidArgument(f"permits must be from 1 to {MOST}, not {plan.permits!r}")
    for name in ("writers", "downgrade"):
        if not 0 <= _number(name, getattr(plan, name)) <= 1:
            raise InvalidArgument(f"{name} is a part, from 0 to 1, not {getattr(plan, name):g}")
    for name in (*ZERO_OR_MORE, *MORE_THAN_ZERO):
        _length(name, getattr(plan, name), least=name in MORE_THAN_ZERO)
    if plan.patience is not None:
        _length("patience", plan.patience, least=True)
    for name in PARTS:
        part = _number(name, getattr(plan, name))
        if not 0 <= part < 1:
            raise InvalidArgument(f"{name} is a part, from 0 to less than 1, not {part:g}")
    if not 0 <= _number("drift", plan.drift) <= 0.5:
        raise InvalidArgument(f"drift is a part, from 0 to 0.5 (0.01 is 1 %), not {plan.drift:g}")
    for name in ("step", "clock_behind"):
        _number(name, getattr(plan, name))
    return plan


def _number(name: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
        raise InvalidArgument(f"{name} must be a number, not {given!r}")
    return float(given)


def _length(name: str, given: object, *, least: bool) -> None:
    length = _number(name, given)
    if not 0 <= length <= 1e9 or (least and length == 0):
        floor = "more than 0" if least else "0 or more"
        raise InvalidArgument(f"{name} must be {floor} and finite, not {given!r}")


def schedule(plan: Scenario, chance: Random) -> list[Fault]:
    """All faults of a run, in order of time."""
    faults: list[Fault] = []

    def often(every: float, kind: str, node: int, length: float, size: float = 0.0) -> None:
        at = 0.0
        while every:
            at += chance.expovariate(1 / every)
            if at >= plan.seconds:
                return
            faults.append(Fault(at, kind, node, length, size))
            at += length

    for node in range(plan.nodes):
        if plan.pause:
            often(plan.pause_every, "freeze" if plan.frozen else "pause", node, plan.pause)
        often(plan.crash_every, "crash", node, plan.restart)
        for kind in ("cut", "cut_out", "cut_in") if plan.cut else ():
            often(plan.cut_every * 3, kind, node, plan.cut * chance.uniform(0.5, 1.5))
        often(plan.cancel_every, "cancel", node, 0.0)
    if plan.step:
        often(plan.step_every, "step", -1, 0.0, -plan.step)
    often(plan.failover_every, "failover", -1, plan.behind + plan.outage, -plan.clock_behind)
    return sorted(faults, key=lambda fault: (fault.at, fault.node, fault.kind))
