"""The row of `lifehold run`: its options, its operands and its help."""

from __future__ import annotations

from . import target
from .row import (
    STORE,
    Command,
    Option,
    Usage,
    duration,
    end_of_options,
    in_store,
    is_nameless,
    status,
    with_values,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def lasting(text: str) -> float:
    """Seconds, more than none."""
    seconds = duration(text)
    if not seconds:
        raise ValueError(f"it must be more than 0, not {text!r}")
    return seconds


SLOTS = (
    "each slot is a lock in a file here. A store has semaphores too, in Python:"
    " connect(URL).semaphore(NAME, PERMITS)"
)


LISTED = 8  # slots that are told one by one


def words_of_slots(text: str) -> list[str]:
    """`0,1,2`: a word for each slot, none twice; `4,` is one slot called 4.

    0 and 1 alone may stand: that is one slot, whether its word is meant or their number.
    """
    words = [word.strip() for word in text.split(",")]
    if _is_number(words[0]) and words[1:] == [""]:
        return words[:1]
    if _is_number(words[0]) and len(words) == 1 and int(words[0]) > 1:
        raise ValueError(_one_or_many(words[0]))
    if not all(words):
        raise ValueError(f"a word for each slot with commas between, such as 0,1,2, not {text!r}")
    twice = next((word for word in words if words.count(word) > 1), None)
    if twice is not None:
        raise ValueError(f"slot {twice!r} is named twice")
    return words


def typed_slots(words: list[str]) -> str:
    """The value of --slots that means these words."""
    return f"{words[0]}," if len(words) == 1 and _is_number(words[0]) else ",".join(words)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()


def _one_or_many(number: str) -> str:
    """That a number alone is no number of slots. A list that is long is told as seq(1) makes it."""
    count = int(number)
    listed = ",".join(map(str, range(count))) if count <= LISTED else f'"$(seq -s, 0 {count - 1})"'
    return (
        f"it names each slot, and {number} alone is one slot called '{number}'; for {count} write "
        f"--slots {listed}; for one slot of that name --slots {number},"
    )


def variable(text: str) -> str:
    """The name of an environment variable."""
    if not text.isidentifier() or not text.isascii():
        raise ValueError(f"{text!r} cannot be the name of an environment variable")
    return text


RUN = Command(
    "run",
    "lifehold run [options] NAME|PATH [--] CMD [ARG...]",
    "Run CMD while holding a lock; nobody else has it meanwhile.",
    """\
  lifehold run nightly-report -- python run.py       wait until it is free
  lifehold run -n sync -- rsync -a src/ dst/         do not wait: 75 when held
  lifehold run -w 5m ./data/db.lock -- make          wait five minutes; a path
  lifehold run --also stock orders -- ./book         both locks, or none""",
    (
        target.NAMED,
        Option(
            "also", ("--also",), "hold this lock too, or none; may be repeated", "NAME", many=True
        ),
        STORE,
        Option("wait", ("-n", "--nonblock"), "do not wait when it is held", store=0.0),
        Option(
            "wait",
            ("-w", "--wait"),
            "wait at most so long: seconds, 30s, 5m, 1h,\n2d (default: until it is free)",
            "TIME",
            duration,
        ),
        Option(
            "conflict",
            ("-E", "--conflict-exit-code"),
            "exit code when it is held\n(default: 75)",
            "N",
            status,
        ),
        Option(
            "skip_ok",
            ("--skip-ok",),
            "when it is held, skip CMD and end with 0;\nmeans -n unless -w is given",
            default=False,
        ),
        Option("exclusive", ("-x", "--exclusive"), "hold it alone (default)", default=True),
        Option(
            "exclusive",
            ("-s", "--shared"),
            "hold it together with others that use -s",
            store=False,
            default=True,
        ),
        Option(
            "fair",
            ("--fair",),
            "first come, first served, among all that ask\nwith --fair",
            default=False,
        ),
        Option(
            "kind",
            ("--kind",),
            "auto (default), kernel, soft, link, generation,\n"
            "directory or folder: what kind of lock; in\nPostgreSQL session: it ends with "
            "its connection",
            "KIND",
            default="auto",
        ),
        Option(
            "ttl",
            ("--ttl",),
            "not kernel or folder: others may take it when\nlifehold has been silent for so long",
            "TIME",
            lasting,
        ),
        Option(
            "slots",
            ("--slots",),
            "hold one of these, such as 0,1,2: as many CMDs\nat once; all must give as many words",
            "WORDS",
            words_of_slots,
        ),
        Option(
            "slot_env",
            ("--slot-env",),
            "tell CMD its slot in this variable\n(LIFEHOLD_SLOT has it too)",
            "VAR",
            variable,
        ),
        Option("shell", ("-c", "--command"), "CMD as one text for $SHELL (or /bin/sh)", "TEXT"),
        Option(
            "close",
            ("-o", "--close"),
            "CMD does not inherit the lock, and ends with\nlifehold",
            default=False,
        ),
        Option(
            "replace",
            ("-F", "--no-fork"),
            "become CMD: nobody watches the lock, which\nlives as long as CMD",
            default=False,
        ),
        Option(
            "max_hold",
            ("--max-hold",),
            "stop CMD when it has held the lock so\nlong: status 74",
            "TIME",
            lasting,
        ),
        Option(
            "grace",
            ("--kill-grace",),
            "from TERM to KILL, when CMD must be stopped\n(default: 5s)",
            "TIME",
            duration,
            default=5.0,
        ),
        Option("label", ("--label",), "a word for people, shown to waiters", "TEXT", default=""),
        Option(
            "history",
            ("--no-history",),
            "write no line for `lifehold log`",
            store=False,
            default=True,
        ),
        Option("verbose", ("-v", "--verbose"), "say on stderr what happens", default=False),
        Option(
            "json",
            ("--json",),
            "end with one line on stderr in JSON, schema\nlifehold.run/1",
            default=False,
        ),
    ),
    (("name", "..."),),
    """\
Options stand before NAME or directly behind it. From the first word of CMD on
nothing is ours. The -- before CMD may be left out, unless CMD begins with a
dash or has a -- of its own.

With --name there is no NAME behind the options. A NAME is the file NAME.lock in
$LIFEHOLD_DIR, else /var/lib/lifehold if you may write there, else
$XDG_STATE_HOME/lifehold (~/.local/state/lifehold).

CMD finds in its environment: LIFEHOLD_NAME, LIFEHOLD_LOCK (the file),
LIFEHOLD_TOKEN (grows with every exclusive grant; empty when there is none),
LIFEHOLD_NONCE, LIFEHOLD_HELD (all locks held around it). Of several locks the
first four tell NAME.

The lock outlives a kill -9 of lifehold for as long as CMD runs. It is let go of
when CMD and all of its process group have ended; setsid keeps a process out of
this. TERM, INT, HUP, QUIT, USR1 and USR2 are passed on. When the lock is lost,
CMD is stopped: TERM, after 5 s KILL.

Exit codes: CMD's own (128 + N when signal N ended it); 127 not found, 126 not
executable; 75 held; 64 usage; 65 corrupt record; 71 the system refused; 74 lost
while running, or held too long; 78 unsafe ground.""",
)


def quick(command: Command, words: list[str]) -> tuple[dict[str, Any], list[str]] | None:
    """Options by name, and the operands; None for anything unusual, which argparse is to judge."""
    known = {flag: option for option in command.options for flag in option.flags}
    given = {option.name: option.default for option in command.options}
    name: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word[:1] != "-":
            if name or given["called"] or given.get("build") is not None:
                break
            name.append(word)
            at += 1
            continue
        if word == "--":
            at += not name  # behind NAME it stays: what follows it is CMD
            break
        at += 1
        option = known.get(word)
        if option is None or (name and word in INSTEAD_OF_NAME):
            return None
        if option.name == "wait" and given["wait"] is not None:  # twice, or -n beside -w
            return None
        if not option.takes:
            given[option.name] = option.store
            continue
        if at == len(words) or words[at][:1] == "-":
            return None
        try:
            read = option.read(words[at])
        except ValueError:
            return None
        given[option.name] = [*(given[option.name] or ()), read] if option.many else read
        at += 1
    rest = name + words[at:]
    return (given, rest) if rest else None


INSTEAD_OF_NAME = ("--name", "--build")  # with one of these no NAME stands behind the options


def parted(words: list[str], command: Command = RUN) -> tuple[list[str], list[str]]:
    """Options, those directly behind NAME too, and the operands with CMD. Raises Usage.

    An option that there is not is left to argparse.
    """
    takes = with_values(command)
    first = end_of_options(words, 0, takes)
    options = words[:first]
    if words[first : first + 1] == ["--"]:
        return options, words[first + 1 :]
    if first == len(words) or _instead(options):
        return options, words[first:]
    end = end_of_options(words, first + 1, takes)
    behind = words[first + 1 : end]
    if flag := _instead(behind):
        raise Usage(
            f"{flag} takes the place of NAME, and one stands before it: give one of the two\n"
            f"usage: {command.usage}"
        )
    return options + behind, [words[first], *words[end:]]


def _instead(options: list[str]) -> str:
    """The option among them that takes the place of NAME, or ""."""
    named = (word.partition("=")[0] for word in options)
    return next((word for word in named if word in INSTEAD_OF_NAME), "")


def names_and_command(
    given: dict[str, Any], rest: list[str], words: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """The locks, NAME first, and CMD as words. `words`: the whole line. Raises Usage.

    A `--` that comes later than right behind NAME could be CMD's own (`job git log -- file`) or be
    meant to end a list of locks: neither is guessed, since the wrong lock would be held in silence.
    Nor is the first word of CMD taken for the NAME where that was forgotten (`-- nice make`).
    """
    shell, called = given["shell"], given["called"] or []
    rest = [called[0], *(["--", *rest] if rest else [])] if called else rest
    names, command = rest[:1], rest[1:]
    if not names or names == ["--"]:
        raise _usage("no lock is named")
    if shell is not None:
        if "--" in rest:
            raise _usage("give -c TEXT or CMD, not both")
        if command:
            raise _usage(
                f"with -c TEXT there is one NAME, and {command[0]!r} stands behind it. "
                f"To hold more locks:  {_also(rest)} -c TEXT {rest[0]}"
            )
        command = ["-c", shell]
    elif command[:1] == ["--"]:
        command = command[1:]
    elif command:
        _refuse_unclear(rest, words)
    if not command:
        from . import mistaken

        raise _usage(mistaken.without_command(names[0], RUN, words))
    if not (shell if shell is not None else command[0]).strip():
        raise _usage("CMD is empty: an unset variable?")
    if shell is not None or (command[0] == "-c" and len(command) == 2):  # as flock(1) has it
        import os

        command = [os.environ.get("SHELL") or "/bin/sh", *command]
    names += [*called[1:], *(given["also"] or ())]
    if given["store"] is not None:
        names = [in_store(given["store"], name) for name in names]
    return [target.lock(name) for name in names], command


def _refuse_unclear(rest: list[str], words: Sequence[str]) -> None:
    """Raises Usage where the first word may be none of the lock."""
    late = rest[1].startswith("-") and "--" in rest  # `-- NAME -n -- CMD`
    if not late and is_nameless([*words], RUN):
        from . import mistaken

        raise _usage(mistaken.without_name(RUN, words))
    if "--" in rest:
        raise _unclear(rest)


def _unclear(rest: list[str]) -> Usage:
    """Words between NAME and the `--`."""
    from ..core.explain import quote

    name, between = quote(rest[0]), rest[1 : rest.index("--")]
    first = between[0]
    if first.startswith("-"):
        return _usage(
            f"{first!r} stands behind a --, where no option of lifehold is; to call a CMD of that "
            f"name:  lifehold run {name} -- {quote(first)} ..."
        )
    return Usage(
        f"{first!r} stands between NAME and a --: is it CMD or a lock?\n"
        f"  CMD    lifehold run {name} -- {quote(first)} ...\n"
        f"  lock   {_also([rest[0], *between])} {name} -- CMD"
    )


def _also(names: list[str]) -> str:
    """The command line that holds all of `names`, but for its first."""
    from ..core.explain import quote

    return " ".join(["lifehold run", *(f"--also {quote(name)}" for name in names[1:])])


def contradictions(given: dict[str, Any]) -> None:
    """Raises Usage for options that cannot be had together."""
    if given["replace"]:
        for name, flag in (("close", "-o"), ("max_hold", "--max-hold"), ("ttl", "--ttl")):
            if given[name]:
                raise _usage(f"-F and {flag} cannot both be: with -F nobody is left to stop CMD")
        if given["kind"] == "link":
            raise _usage(
                "-F and --kind link cannot both be: with -F nobody is left to touch the "
                "lock file, which others then take for stale"
            )
    if given["slots"]:
        others = ("-s", not given["exclusive"]), ("--fair", given["fair"]), ("--ttl", given["ttl"])
        for flag, there in (*others, ("--kind", given["kind"] != "auto")):
            if there:
                raise _usage(
                    f"--slots and {flag} cannot both be: each slot is a kernel lock, and "
                    "waiters are served in order anyway"
                )
        if given["also"]:
            raise _usage("--slots is for one lock, and --also names another")
    elif given["slot_env"]:
        raise _usage("--slot-env tells CMD which of --slots it has: give --slots too")
    if given["store"] is not None:
        _no_store(given)
    if given["skip_ok"] and given["conflict"] is not None:
        raise _usage("give --skip-ok, which ends with 0, or -E N, not both")


def _no_store(given: dict[str, Any]) -> None:
    """Raises Usage for what is for locks in files."""
    if given["slots"]:
        raise _usage(f"--store and --slots cannot both be: {SLOTS}")
    others = ("-s", not given["exclusive"]), ("-F", given["replace"])
    for flag, there in (*others, ("--kind", given["kind"] not in ("auto", "session"))):
        if there:
            raise _usage(f"--store and {flag} cannot both be: {flag} is for locks in files")


def _usage(text: str) -> Usage:
    return Usage(f"{text}\nusage: {RUN.usage}")
