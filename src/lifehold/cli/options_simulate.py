"""The row of `lifehold simulate`: its options and its help."""

from __future__ import annotations

from ..core.nearest import did_you_mean
from .row import Command, Option, duration

SHAPES = ("lock", "readwrite", "semaphore")


def count_of(text: str) -> int:
    """A number, 1 or more."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 31):
        raise ValueError(f"a whole number from 1 on, not {text!r}")
    return int(text)


def seed(text: str) -> int:
    """Any whole number."""
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 63):
        raise ValueError(f"a seed is a whole number from 0 on, not {text!r}")
    return int(text)


def part(text: str) -> float:
    """`0.01` or `1%`."""
    number, scale = (text[:-1], 100.0) if text[-1:] == "%" else (text, 1.0)
    if not set(number) <= set("0123456789.") or not number.strip(".") or number.count(".") > 1:
        raise ValueError(f"a part is 0.01 or 1%, not {text!r}")
    return float(number) / scale


def shape(text: str) -> str:
    """What the locks are."""
    if text not in SHAPES:
        end = did_you_mean(text, SHAPES)
        raise ValueError(f"a shape is one of {', '.join(SHAPES)}, not {text!r}{end}")
    return text


def hours(text: str) -> float:
    """Hours, where `duration` has seconds."""
    try:
        length = duration(text if text[-1:] in tuple("smhd") else f"{text}h")
    except ValueError:
        length = 0.0
    if not 0 < length <= 1000 * 3600:
        raise ValueError(f"hours are more than 0 and at most 1000, not {text!r}")
    return length / 3600


def length(name: str, help_: str) -> Option:
    """An option that is a length of time."""
    return Option(name, (f"--{name.replace('_', '-')}",), help_, "TIME", duration)


SIMULATE = Command(
    "simulate", "lifehold simulate [--ttl TIME] [--pause TIME] [OPTION...]",
    "Try a lease's settings in virtual time: do they survive?",
    """\
  lifehold simulate --ttl 10 --pause 12     holders that stop for 12 s
  lifehold simulate --ttl 30 --loss 1% --drift 1% --cut 8 --crash-every 5m
  lifehold simulate --shape semaphore --permits 2 --ttl 10 --pause 12
  lifehold simulate --scale --ttl 30        what 100,000 clients ask of a store""",
    (
        length("ttl", "of the lease; 30"),
        length("heartbeat", "between two renewals; ttl/3"),
        length("margin", "by which the holder stops earlier; ttl/10"),
        length("pause", "each node stops for so long, now and then: a garbage\n"
               "collector, a full disk, SIGSTOP; 0"),
        length("pause_every", "how often, per node; 60"),
        Option("frozen", ("--frozen",), "the clock of a node that stops stands still, as that\n"
               "of a virtual machine may", default=False),
        Option("nodes", ("-n", "--nodes"), "machines that want the lock; 5", "N", count_of),
        Option("names", ("--names",), "locks that they share; 1", "N", count_of),
        Option("shape", ("--shape",), "of the locks: lock, readwrite, semaphore; lock", "SHAPE",
               shape),
        Option("permits", ("--permits",), "of a semaphore; 3", "N", count_of),
        Option("writers", ("--writers",), "of the turns of a readwrite that write; 25%", "PART",
               part),
        Option("downgrade", ("--downgrade",), "of these writers that go on as readers; 25%",
               "PART", part),
        length("hold", "for which the lock is held, on the average; 2"),
        length("think", "between two turns of a node, on the average; 2"),
        Option("hours", ("--hours",), "simulated; 2. With a unit: 30m, 3d", "H", hours),
        Option("seed", ("--seed",), "all chance comes from it; 1", "N", seed, default=1),
        length("crash_every", "how often a node's process dies; 200, 0 for never"),
        length("skew", "by which the nodes' clocks are set wrong; 0"),
        Option("drift", ("--drift",), "by which they run wrong: 0.01 or 1%; 0", "PART", part),
        length("latency", "of a round trip to the store; 0.002"),
        Option("spike", ("--spike",), "of the messages are late, by up to 5 s; 0", "PART", part),
        Option("loss", ("--loss",), "of the messages are lost; 0", "PART", part),
        Option("twice", ("--twice",), "of the requests come twice; 0", "PART", part),
        length("cut", "a node is cut off from the store for so long; 0"),
        length("cut_every", "how often, per node; 300"),
        length("timeout", "after which a client gives up a request; 2"),
        length("step", "by which the store's clock is set back, now and then; 0"),
        length("step_every", "how often; 600"),
        length("failover_every", "how often an asynchronous standby takes over,\n"
               "without the last writes; 0 for never"),
        length("behind", "seconds of writes that it does not have; 0.5"),
        length("clock_behind", "by which its clock is behind; 0"),
        Option("scale", ("--scale",), "instead: commands per second at the store, for up\n"
               "to 100,000 clients", default=False),
        Option("shrink", ("--shrink",), "the fewest faults that still show what went wrong",
               default=False),
        Option("log", ("--log",), "every event on stderr", default=False),
        Option("json", ("--json",), "answer in JSON, schema lifehold.simulate/1", default=False),
    ),
    (),
    """\
What runs is the library's own lease engine; time, machines, network and store
are simulated. The same seed gives the same run, to the byte. Survived means: no
lease was lost, nobody believed to hold what another held, no write came late.
It is a search by chance and no proof.

Exit codes: 0 survived, 1 not; 64 usage.""",
)  # fmt: skip
