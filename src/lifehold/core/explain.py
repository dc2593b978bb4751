"""The one text for "held", in library and command: what happened, who holds it, what to do next."""

from __future__ import annotations

from datetime import UTC, datetime

from .mask import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .grant import Holder


def held_text(
    name: str, holder: Holder | None, waited: float, now: float, reason: str = "", target: str = ""
) -> str:
    """Why the lock was not acquired, over several lines.

    `now`: UTC seconds, for the age of the grant; `target`: what the command line calls the lock,
    when that differs from its name in the program.
    """
    within = f" within {span(waited)}" if waited > 0 else " at once"
    head = f"could not acquire '{printable(name)}'{within}: {reason or 'it is held'}\n"
    return head + "\n".join(holder_lines(target or name, holder, now))


def waiting_text(name: str, holder: Holder | None, waited: float, now: float) -> str:
    """One line for a log, while waiting."""
    text = f"waiting for '{printable(name)}' for {span(waited)}"
    if holder is None:
        return f"{text}: held, the holder left no trace"
    return f"{text}: held by {by(holder)}, since {since(holder, now)}, alive: {alive(holder)}"


def holder_lines(target: str, holder: Holder | None, now: float) -> list[str]:
    """The lines "by, since, alive, next, lock"."""
    quoted = quote(target)
    lines = []
    if holder is None:
        lines.append("  by     unknown: the holder left no trace that can be read from here")
    else:
        lines += [
            f"  by     {by(holder)}",
            f"  since  {since(holder, now)}",
            f"  alive  {alive(holder)}",
        ]
    lines.append(
        f"  next   wait:  lifehold run --wait 1h {quoted} -- CMD      look:  lifehold who {quoted}"
    )
    if holder is not None and holder.lock:
        lines.append(f"  lock   {printable(holder.lock)}")
    return lines


def by(holder: Holder) -> str:
    """The holder in one phrase."""
    owner = holder.owner
    if owner is None:
        return "unknown"
    parts = [f"pid {owner.pid}" + (f" ({printable(owner.command)})" if owner.command else "")]
    if owner.user or owner.uid is not None:
        parts.append(f"user {printable(owner.user or str(owner.uid))}")
    if owner.host:
        parts.append(f"host {printable(owner.host)}")
    if owner.container:
        parts.append(f"container {printable(owner.container[:12])}")
    if owner.label:
        parts.append(f"label {printable(owner.label)}")
    return ", ".join(parts)


def since(holder: Holder, now: float) -> str:
    """When it was acquired, and how long ago."""
    if holder.since is None:
        return "unknown"
    return f"{utc(holder.since)} ({span(max(0.0, now - holder.since))})"


def alive(holder: Holder) -> str:
    """The verdict and its evidence."""
    words = {"alive": "yes, checked now", "dead": "no", "unknown": "cannot be told"}
    return words[holder.alive] + (f" ({printable(holder.evidence)})" if holder.evidence else "")


def span(seconds: float) -> str:
    """A length of time for people: `0.25 s`, `30 s`, `4 min 10 s`, `11 h 34 min`, `3 d 2 h`."""
    if seconds < 10:
        return f"{seconds:.3g} s" if seconds >= 0.001 or seconds == 0 else "0.001 s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    for unit, word, lesser, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // lesser
            return f"{whole // unit} {word}" + (f" {rest} {small}" if rest else "")
    raise AssertionError(whole)


def utc(instant: float) -> str:
    """`2026-11-20 02:00:04 UTC` of UTC seconds."""
    return f"{datetime.fromtimestamp(int(instant), UTC):%Y-%m-%d %H:%M:%S} UTC"


SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")


def quote(name: str) -> str:
    """`name` as one word of a shell, so that a printed remedy runs as printed."""
    if name and set(name) <= SAFE:
        return name
    if name.isprintable():
        return "'" + name.replace("'", "'\"'\"'") + "'"
    text = printable(name.replace("\\", "\\\\").replace("'", "\\'"))
    return f"$'{text}'"
