"""What is said to a word that lifehold does not know: the nearest of ours, or what does it here.

Rule: a remedy that is printed runs as printed, once NAME and CMD stand for real ones. Another
tool's word is answered only where one line of ours does the same.
"""

from __future__ import annotations

from ..core.nearest import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .row import Command

RUN = "lifehold run NAME -- CMD"
# What does it here, and by which words others call it.
INSTEAD = {
    RUN: "exec acquire lock take setlock lockrun lckdo lockf solo withlock with-lock with "
    "cronlock runone shlock lead leader election",
    "lifehold run --slots 0,1 NAME -- CMD": "sem semaphore slots",
    "lifehold once NAME -- CMD": "singleflight dedup only-once",
    "lifehold who NAME": "holder owner status show info inspect fuser lsof get",
    "lifehold ls": "list locks lslocks ps",
    "lifehold wait NAME": "await waitfor",
    "lifehold clear PATH": "unlock release break break-lock force-unlock steal remove rm delete "
    "clean cleanup",
    "lifehold dotlockfile -l PATH": "lockfile lockfile-create mutt_dotlock mlock",
    "lifehold dotlockfile -u PATH": "lockfile-remove",
    "lifehold dotlockfile -c PATH": "lockfile-check",
    "lifehold dotlockfile -t PATH": "lockfile-touch",
    "lifehold log NAME": "history logs",
    "lifehold watch CONFIG": "monitor alert",
    "lifehold simulate": "sim",
    "lifehold doctor DIR": "probe diagnose",
    "lifehold audit DIR": "lint scan",
    "lifehold store migrate URL": "migrate",
}
# Options of other lock tools, and what they are here. "": said in words below.
OPTIONS = {
    "--wait": "--timeout --lock-wait --wait-time --max-wait --blocking-timeout --retry-lock",
    "--nonblock": "--no-wait --nowait --non-blocking --nb --try --immediate --fail",
    "--conflict-exit-code": "--exit-code --status --code",
    "--max-hold": "--maxtime --max-time --limit --kill-after",
    "--ttl": "--expire --expiry --expires --lease --lifetime --stale",
    "--shared": "--read --reader --read-lock",
    "--exclusive": "--write --writer --write-lock",
    "--slots": "--permits --count --jobs",
    "--last": "--tail --lines",
    "--recursive": "--deep --tree",
    "--dry-run": "--dryrun --simulate --pretend",
    "": "--lockfile --lock-file --file --lock --path --key",
}

QUOTES = "'"
OF_FLOCK = ("-n", "--nonblock", "-s", "--shared", "-x", "--exclusive", "-o", "--close", "-F")


def command(word: str, known: Iterable[str]) -> str:
    """Why there is no command `word`, and what to write instead."""
    if "/" in word or "://" in word:
        from ..core.explain import quote

        return (
            f"'{word}' is a PATH, and a command is to stand before it:  "
            f"lifehold run {quote(word)} -- CMD"
        )
    if word[:1] == "-":
        return f"'{word}' is an option, and a command is to stand before it:  {_with(word)}"
    lower = word.lower()
    for line, names in INSTEAD.items():
        if lower in names.split():
            return f"unknown command '{word}'; what does it here is:  {line}"
    near = nearest(lower, known)
    end = f"; did you mean '{near}'?" if near else ". All commands: lifehold --help"
    return f"unknown command '{word}'{end}"


def option(word: str, row: Command) -> str:
    """Why `row` has no option `word`, and which was meant."""
    flags = [flag for each in row.options for flag in each.flags]
    name = word.partition("=")[0]  # L11  its value may be a secret
    if name[:2] != "--" and len(name) > 2 and f"-{name}" in (*flags, *_others()):
        return f"unknown option '{name}'; did you mean '{_ours(f'-{name}', flags)}'?"
    ours = _ours(name, flags)
    if ours:
        return f"unknown option '{name}'; did you mean '{ours}'?"
    if name in OPTIONS[""].split() and row.operands:
        return f"unknown option '{name}': the lock stands without one, as NAME or ./PATH"
    return f"unknown option '{name}'. All options: lifehold {row.name} --help"


def in_options(text: str, row: Command) -> str:
    """A text of the library, its arguments of Python as options: kind='soft' as --kind soft."""
    import re

    flags = {flag for each in row.options for flag in each.flags}

    def typed(found: re.Match[str]) -> str:
        flag = f"--{found[1].replace('_', '-')}"
        return f"{flag} {(found[2] or '').strip(QUOTES)}".rstrip() if flag in flags else found[0]

    return re.sub(r"\b([a-z_]+)=('[\w-]+'|\d+(?:\.\d+)?)?(?![\w'\"])", typed, text)


def _with(word: str) -> str:
    """A line of `run` that has the option, where it is one of flock(1) too."""
    return f"lifehold run {word} NAME -- CMD" if word in OF_FLOCK else "lifehold --help"


def _others() -> list[str]:
    return [name for names in OPTIONS.values() for name in names.split()]


def _ours(name: str, flags: list[str]) -> str:
    """The flag that is meant; "" when none is like it."""
    if name in flags:
        return name
    for ours, names in OPTIONS.items():
        if name in names.split() and ours in flags:
            return ours
    return nearest(name, flags) if name[:2] == "--" else ""
