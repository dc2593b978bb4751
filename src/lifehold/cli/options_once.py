"""The row of `lifehold once`: its options, its operands and its help."""

from __future__ import annotations

from . import target
from .options_run import lasting
from .row import STORE, Command, Option, Usage, duration, in_store, is_nameless, status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


ONCE = Command(
    "once", "lifehold once [options] NAME|PATH|--build DIR -- CMD [ARG...]",
    "Run CMD once; all who ask get its output and exit code.",
    """\
  lifehold once migrate-42 -- ./manage migrate       of ten pods one migrates
  lifehold once --keep 1h prices -- ./fetch-prices   at most an hour old
  lifehold once --unless 'test -s model.bin' model -- ./download
  lifehold once --build cache/v7 -- sh -c 'tar xf v7.tar -C "$LIFEHOLD_BUILD"'""",
    (
        target.NAMED,
        Option("keep", ("--keep",), "how long its output counts: seconds, 30s, 5m, 1h,\n"
               "2d; 0: for those who waited (default: for good)", "TIME", duration),
        Option("keep_failure", ("--keep-failure",), "the same for an exit code other than 0\n"
               "(default: 0)", "TIME", duration, default=0.0),
        Option("unless", ("--unless",), "a command for /bin/sh: when it ends with 0, CMD\n"
               "is not needed. With it --keep is 0 unless given", "CHECK"),
        Option("build", ("--build",), "instead of NAME: DIR is built once. CMD fills the\n"
               "folder that LIFEHOLD_BUILD names, which is renamed\nto DIR", "DIR"),
        Option("forget", ("--forget",), "remove what is kept under NAME, and run nothing",
               default=False),
        STORE,
        Option("wait", ("-n", "--nonblock"), "do not wait while it runs elsewhere", store=0.0),
        Option("wait", ("-w", "--wait"), "wait at most so long (default: until it has\n"
               "ended)", "TIME", duration),
        Option("conflict", ("-E", "--conflict-exit-code"), "exit code when it still runs\n"
               "elsewhere (default: 75)", "N", status),
        Option("kind", ("--kind",), "kind of lock: kernel (default) or soft", "KIND",
               default="auto"),
        Option("ttl", ("--ttl",), "soft: others may take over from a silent lifehold\n"
               "after so long", "TIME", lasting),
        Option("shell", ("-c", "--command"), "CMD as one text for $SHELL (or /bin/sh)", "TEXT"),
        Option("max_hold", ("--max-hold",), "stop CMD when it has run so long: status 74",
               "TIME", lasting),
        Option("grace", ("--kill-grace",), "from TERM to KILL, when CMD must be stopped\n"
               "(default: 5s)", "TIME", duration, default=5.0),
        Option("label", ("--label",), "a word for people, shown to waiters", "TEXT", default=""),
        Option("history", ("--no-history",), "write no line for `lifehold log`", store=False,
               default=True),
        Option("verbose", ("-v", "--verbose"), "say on stderr what happens", default=False),
        Option("json", ("--json",), "end with one line on stderr in JSON, schema\nlifehold.once/1",
               default=False),
    ),
    (("name", "..."),),
    """\
Options stand before NAME or directly behind it. What follows them, or the first
--, is CMD.

CMD writes its stdout into a file beside the lock; everybody gets those bytes,
the one who runs it while they come. Its stderr is shown there alone. With a
store the output is kept there; of more than 1 MB the others get the beginning,
and are told so.

With --build nothing is at DIR, or all that one CMD made. A DIR with something
in it is the answer at once: status 0, and no output. The lock is DIR.lock.

An exit code other than 0 goes to all who waited, as it is; who comes later runs
CMD again, unless --keep-failure. When CMD was ended by a signal from outside
(INT, TERM, HUP, QUIT, KILL), or lifehold was killed, there is no result: CMD is
stopped, and exactly one of those who wait runs it next.

Exit codes: those of CMD (128 + N when signal N ended it); 127 not found, 126
not executable; 0 not needed (--unless); 75 it still runs elsewhere; 64 usage;
65 corrupt record; 71 the system refused; 74 lock lost while running, or run too
long; 78 unsafe ground.""",
)  # fmt: skip


def name_and_command(
    given: dict[str, Any], rest: list[str], words: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """The lock, and CMD as words, none with --forget. `words`: the whole line. Raises Usage."""
    called = given["called"] or []
    if given["build"] is not None:
        rest = _built(given, rest)
    elif called:
        rest = [called[0], *(["--", *rest] if rest else [])]
    name, command = rest[0] if rest else "", rest[1:]
    if command[:1] == ["--"]:
        command = command[1:]
    elif command and _nameless(given, command, words):
        raise _without_name(words)
    elif command and command[0].startswith("-"):
        from ..core.explain import quote

        raise _usage(
            f"{command[0]!r} stands behind a --, where no option of lifehold is; to call a CMD of "
            f"that name:  lifehold once {quote(name)} -- {quote(command[0])} ..."
        )
    if name == "--" or not rest:
        raise _usage("no NAME is given")
    if len(called) > 1:
        raise _usage("one NAME is run once: give --name once")
    if given["store"] is not None:
        name = in_store(given["store"], name)
    if given["build"] is None:
        name = target.lock(name)
    if given["forget"]:
        if command or given["shell"] is not None:
            raise _usage("--forget runs nothing: give it NAME alone")
        return name, []
    shell = given["shell"]
    if shell is not None:
        if command:
            raise _usage("give -c TEXT or CMD, not both")
        command = ["-c", shell]
    if not command:
        from . import mistaken

        raise _usage(mistaken.without_command(name, ONCE, words))
    if not (shell if shell is not None else command[0]).strip():
        raise _usage("CMD is empty: an unset variable?")
    if shell is not None:
        import os

        command = [os.environ.get("SHELL") or "/bin/sh", *command]
    return name, command


def _nameless(given: dict[str, Any], command: list[str], words: Sequence[str]) -> bool:
    """Whether NAME was forgotten before the `--`, and the first word of CMD stands for it."""
    if given["forget"] or given["shell"] is not None:
        return False
    late = command[0].startswith("-") and "--" in command  # `-- NAME -n -- CMD`
    return not late and is_nameless([*words], ONCE)


def _without_name(words: Sequence[str]) -> Usage:
    from . import mistaken

    return _usage(mistaken.without_name(ONCE, words))


def _built(given: dict[str, Any], rest: list[str]) -> list[str]:
    """The words as without --build, its folder in the place of NAME. Raises Usage."""
    for name, flag in (("unless", "--unless"), ("called", "--name"), ("forget", "--forget"),
                       ("keep", "--keep"), ("store", "--store")):  # fmt: skip
        if given[name] not in (None, False):
            raise _usage(f"give --build or {flag}, not both: a folder that is there is the answer")
    if not given["build"]:
        raise _usage("--build needs the folder to be built: an unset variable?")
    return [given["build"], "--", *rest]  # no NAME: all of it is CMD


def refuse_name(folder: str, command: list[str]) -> None:
    """Raises Usage for a NAME in front of CMD, where --build DIR stands in its place.

    Only when there is no program of that name and nothing at DIR: else the line is right.
    """
    if command[1:2] != ["--"]:
        return
    import os
    from shutil import which

    if which(command[0]) is None and not os.path.lexists(folder):
        raise _usage(f"--build stands instead of NAME: leave out {command[0]!r}")


def _usage(text: str) -> Usage:
    return Usage(f"{text}\nusage: {ONCE.usage}")
