"""What is said to a word that lifehold does not know: the nearest of ours, or what does it here.

Rule: a remedy that is printed runs as printed, once NAME and CMD stand for real ones. Another
tool's word is answered only where one line of ours does the same.
"""

from __future__ import annotations

from ..core.mask import printable
from ..core.nearest import nearest
from .row import duration, end_of_options, with_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .row import Command, Option

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

# Options of others that one of ours is not the same as, by the commands they are given to: what is
# said. {0} is the command, {1} a length of time.
SAID = (
    ("run once", "--mode", "{0} takes no --mode: the umask decides who may open the lock file"),
    ("run once wait", "-t", "unknown option '-t'; write -w {1}"),
    ("wait", "-n --nonblock", "wait takes no -n; at once answer  lifehold who NAME, and -w 0"),
    ("clear ls", "-r", "unknown option '-r'; did you mean '-R'?"),
    ("clear", "-f", "unknown option '-f'; write --force WORD: `lifehold clear PATH` prints it"),
)

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


def refused(message: str, row: Command, words: Sequence[str]) -> str:
    """What argparse has refused of `words`, in ours."""
    wrong, lacks = unknown(row, words), message.partition("required: ")[2]
    if lacks and not wrong:
        example = row.examples.strip().partition("  ")[0]
        return f"{lacks} is missing; for example:  {example}"
    if wrong and (lacks or "unrecognized" in message):
        return option(wrong, row, words)  # the cause, whatever is missing after it
    if "unrecognized" in message:
        return _too_many(row, words)
    if "not allowed with" in message:
        return "give -n or -w, not both: -n is -w 0"
    flags = message.removeprefix("argument ").partition(":")[0].split("/")
    flag = next((each for each in words if each.partition("=")[0] in flags), flags[-1])
    if "ignored explicit" in message:
        return f"{flag.partition('=')[0]} takes no value"  # L11  it may be a secret
    found = next((each for each in row.options if flag in each.flags), None)
    if found and "expected one argument" in message:
        return _without_value(found, flag, words)
    return message


def unknown(row: Command, words: Sequence[str]) -> str | None:
    """The first word that looks like an option and is none."""
    flags = with_values(row)
    for word in words:
        if word == "--":
            return None
        flag = word.partition("=")[0] if word[:2] == "--" else word[:2]
        if len(word) > 1 and word[0] == "-" and flag not in flags:
            return word
    return None


def _without_value(found: Option, flag: str, words: Sequence[str]) -> str:
    """What `flag` takes, where nothing or another option stands behind it."""
    behind = words[at] if (at := words.index(flag) + 1) < len(words) else ""
    timed = found.takes == "TIME"
    told = f"{flag} takes {'a length of time' if timed else found.takes}"
    if behind in ("", "--"):
        return f"{told}: 30s, 5m, 1h, 2d" if timed else told
    try:
        found.read(behind)
    except ValueError:
        return f"{told}, not {printable(behind)}"
    joined = f"{flag}=" if flag[:2] == "--" else flag
    return f"{told}; for one with a dash in front write {joined}{printable(behind)}"


def _too_many(row: Command, words: Sequence[str]) -> str:
    """More operands than there may be."""
    names = [name.upper() for name, _ in row.operands]
    there = _operands(row, words)
    more = printable(there[len(names)])
    if not names:
        return f"{row.name} takes options alone, and '{more}' is none"
    told = f"{row.name} takes one {' and one '.join(names)}, and '{more}' stands behind"
    if len(names) > 1:
        return told
    told += f" '{printable(there[0])}'"
    spans = [word for word in there if _is_span(word)]
    if row.name != "wait" or len(there) != 2 or len(spans) != 1:
        return told
    from ..core.explain import quote

    (name,) = (word for word in there if word not in spans)
    return f"{told}; to give up after {spans[0]}:  lifehold wait -w {spans[0]} {quote(name)}"


def _operands(row: Command, words: Sequence[str]) -> list[str]:
    """The words that are neither options nor their values."""
    takes, all_of_them = with_values(row), list(words)
    found: list[str] = []
    at = 0
    while (at := end_of_options(all_of_them, at, takes)) < len(words):
        if words[at] == "--":
            return [*found, *words[at + 1 :]]
        found.append(words[at])
        at += 1
    return found


def _is_span(word: str) -> bool:
    try:
        return duration(word) >= 0
    except ValueError:
        return False


def without_command(name: str, row: Command, words: Sequence[str]) -> str:
    """Why there is no CMD: `name` is the only word that is no option of `words`."""
    at = words.index("--") if "--" in words else 0
    if "--" not in words or [*words[at + 1 :]] != [name]:
        told = f"no command to run: {name!r} is the NAME"
        return f"{told}; for descriptor {name}:  lifehold flock {name}" if name.isdigit() else told
    return without_name(row, words)


def without_name(row: Command, words: Sequence[str]) -> str:
    """That NAME is missing before the first `--` of `words`."""
    from ..core.explain import quote

    at = words.index("--")
    before = words[:at]
    told = "no NAME before --"
    if len(before) > 1 and with_values(row).get(before[-2]):
        told += f": {before[-2]} took {before[-1]!r}"
    line = " ".join(
        ["lifehold", row.name, *map(quote, before), "NAME --", *map(quote, words[at + 1 :])]
    )
    return f"{told}; write  {line}"


def option(word: str, row: Command, words: Sequence[str] = ()) -> str:
    """Why `row` has no option `word`, and which was meant."""
    flags = [flag for each in row.options for flag in each.flags]
    name = word.partition("=")[0]  # L11  its value may be a secret
    if name[:2] != "--" and len(name) > 2 and f"-{name}" in (*flags, *_others()):
        return f"unknown option '{name}'; did you mean '{_ours(f'-{name}', flags)}'?"
    flag = name if name[:2] == "--" else name[:2]
    for commands, theirs, told in SAID:
        if row.name in commands.split() and flag in theirs.split():
            return told.format(row.name, _time_of(word, words))
    ours = _ours(name, flags)
    if ours:
        return f"unknown option '{name}'; did you mean '{ours}'?"
    if name in OPTIONS[""].split() and row.operands:
        return f"unknown option '{name}': the lock stands without one, as NAME or ./PATH"
    return f"unknown option '{name}'. All options: lifehold {row.name} --help"


def _time_of(word: str, words: Sequence[str]) -> str:
    """The length of time that was given with `word`, in it or behind it."""
    behind = words[at] if word in words and (at := words.index(word) + 1) < len(words) else ""
    return next((each for each in (word[2:], behind) if _is_span(each)), "TIME")


def in_options(text: str, row: Command) -> str:
    """A text of the library, its arguments of Python as options: kind='soft' as --kind soft."""
    import re

    flags = {flag for each in row.options for flag in each.flags}

    def typed(found: re.Match[str]) -> str:
        flag = f"--{found[1].replace('_', '-')}"
        return f"{flag} {(found[2] or '').strip(QUOTES)}".rstrip() if flag in flags else found[0]

    return re.sub(r"(?<![\w-])([a-z_]+)=('[\w-]+'|\d+(?:\.\d+)?)?(?![\w'\"])", typed, text)


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
