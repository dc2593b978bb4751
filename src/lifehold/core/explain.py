"""The one text for "held", in library and command: what happened, who holds it, what to do next."""

from __future__ import annotations

from .grant import STOPPED, STUCK, TRACED
from .mask import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .grant import Holder


SHOWN = 120  # characters of a holder's command in a text; the field of the holder has all of it


def held_text(
    name: str,
    holder: Holder | None,
    waited: float | None,
    now: float,
    reason: str = "",
    target: str = "",
    waiters: int | None = None,
    following: list[str] | None = None,
) -> str:
    """Why the lock was not acquired, over several lines.

    `waited`: None when nobody thought of waiting; `now`: UTC seconds, for the age of the grant;
    `target`: what the command line calls the lock, when that differs from its name in the program;
    `waiters`: how many others wait for it; `following`: what to do next, a line each.
    """
    within = "" if waited is None else f" within {span(waited)}" if waited > 0 else " at once"
    lines = [f"could not acquire '{printable(name)}'{within}: {reason or 'it is held'}"]
    if holder is None or holder.owner is None:
        lines.append(f"  by     unknown: {unnamed(holder)}")
    else:
        lines.append(f"  by     {by(holder)}")
    if holder is not None and (holder.owner or holder.alive != "unknown"):
        lines += [f"  since  {since(holder, now)}", f"  alive  {alive(holder)}"]
    if waiters:
        lines.append(f"  queue  {others(waiters)} for it too")
    for at, line in enumerate((*cures(holder), *(following or remedies(target or name)))):
        lines.append(("  next   " if at == 0 else " " * 9) + line)
    if holder is not None and holder.lock:
        lines.append(f"  lock   {printable(holder.lock)}")
    return "\n".join(lines)


def remedies(target: str, option: str | None = "") -> list[str]:
    """Two commands that run as printed, each on a line of its own: names may be long.

    `option`: without which it would be another lock; None where `lifehold run` cannot take it.
    """
    quoted = quote(target)
    run = f"lifehold run --wait 1h {option}{quoted} -- CMD"
    return [
        f"wait:  {f'lifehold wait -w 1h {quoted}' if option is None else run}",
        f"look:  lifehold who {quoted}",
    ]


def in_program(target: str, option: str | None = "", argument: str = "wait") -> list[str]:
    """The same for a program, which is more patient by an argument."""
    return [f"in Python:  give {argument}=60, in seconds", *remedies(target, option)]


def waiting_text(
    name: str, holder: Holder | None, waited: float, now: float, ahead: int | None = None
) -> str:
    """One line for a log, while waiting. `ahead`: how many others wait before us."""
    text = f"waiting for '{printable(name)}' for {span(waited)}: "
    if holder is None or (holder.owner is None and holder.alive == "unknown"):
        text += f"held, {unnamed(holder)}"
    elif holder.owner is None:
        text += f"held, {unnamed(holder)}, alive: {alive(holder)}"
    else:
        text += f"held by {by(holder)}, since {since(holder, now)}, alive: {alive(holder)}"
    return f"{text}; {others(ahead)} before us" if ahead else text


def others(count: int) -> str:
    """`1 other waits`, `3 others wait`."""
    return "1 other waits" if count == 1 else f"{count} others wait"


def by(holder: Holder, *, user: bool = True, host: bool = True, command: int = SHOWN) -> str:
    """The holder in one phrase, `command` characters of its command at most."""
    owner = holder.owner
    if owner is None:
        return "unknown"
    shown = short(printable(owner.command or ""), command) if command else ""
    here = holder.pid_here or owner.pid  # the number that `kill` and `ps` understand here
    strange = " of another PID namespace" if holder.pid_here == 0 else ""
    parts = [f"pid {here}{strange}" + (f" ({shown})" if shown else "")]
    if host and here != owner.pid:
        parts.append(f"pid {owner.pid} in its container")
    if user and (owner.user or owner.uid is not None):
        parts.append(f"user {printable(owner.user or str(owner.uid))}")
    if owner.host and host:
        parts.append(f"host {printable(owner.host)}")
    if owner.container and host:
        parts.append(f"container {printable(owner.container[:12])}")
    if owner.label and user:
        parts.append(f"label {printable(owner.label)}")
    return ", ".join(parts)


def unnamed(holder: Holder | None) -> str:
    """Why nobody can be named."""
    if holder is not None and holder.alive == "unknown" and holder.evidence:
        return printable(holder.evidence)  # a file that cannot be read, a line in which all wait
    return "the holder left no trace"


def short(text: str, longest: int = SHOWN) -> str:
    """`text`, its middle left out when it is longer: a command says most at both of its ends."""
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 5].rstrip()} ... {text[-tail:].lstrip()}"


def since(holder: Holder, now: float) -> str:
    """When it was acquired, and how long ago; else what is known of that."""
    if holder.since is None and holder.began is not None:
        ago = span(int(max(0.0, now - holder.began)))
        return f"unknown (its process began {utc(holder.began)}, {ago} ago)"
    if holder.since is None:
        return "unknown"
    return f"{utc(holder.since)} ({span(int(max(0.0, now - holder.since)))})"


def alive(holder: Holder) -> str:
    """The verdict and its evidence; of one that lives, whether it can run."""
    words = {"alive": "yes, checked now", "dead": "no", "unknown": "cannot be told"}
    halted = f", but {HALTS[holder.halted]}" if holder.halted else ""
    evidence = f" ({printable(holder.evidence)})" if holder.evidence else ""
    return words[holder.alive] + halted + evidence


HALTS = {
    STOPPED: "stopped by a signal: it does nothing until it is continued",
    TRACED: "stopped by its debugger",
    STUCK: "stuck in the kernel (state D), where no signal reaches it",
}


def cures(holder: Holder | None) -> list[str]:
    """What lets a holder go on that lives and cannot run."""
    pid = 0 if holder is None else holder.pid_here or (holder.owner.pid if holder.owner else 0)
    if holder is None or not holder.halted or not pid:
        return []
    if holder.halted == STOPPED:
        return [f"let it go on:  kill -CONT {pid}"]
    if holder.halted == TRACED:
        return [f"see its debugger:  grep TracerPid /proc/{pid}/status"]
    return [f"see on what it waits:  cat /proc/{pid}/wchan"]


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
    days, second = divmod(int(instant // 1), 86400)
    year, month, day = civil(days)
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{year:04}-{month:02}-{day:02} {clock} UTC"


def civil(days: int) -> tuple[int, int, int]:
    """Year, month, day of a number of days since 1970; importing `datetime` takes 2 ms.

    After H. Hinnant, chrono-compatible low-level date algorithms: years begin in March, so that a
    leap day is the last of its year, and 400 of them are an era.
    """
    era, day_of_era = divmod(days + 719_468, 146_097)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    return year + 400 * era + (month <= 2), month, day


SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")


def quote(name: str) -> str:
    """`name` as one word of a shell, so that a printed remedy runs as printed."""
    if name and set(name) <= SAFE:
        return name
    if name.isprintable():
        return "'" + name.replace("'", "'\"'\"'") + "'"
    text = printable(name.replace("\\", "\\\\").replace("'", "\\'"))
    return f"$'{text}'"
