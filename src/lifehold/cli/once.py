"""`lifehold once`: run CMD once, and give its output and exit code to everybody.

Promise: of all who name the same NAME one runs CMD; those who waited get its stdout byte by byte
and its exit code. When lifehold or CMD is killed, CMD is gone before the lock is free, and exactly
one of the others runs it. Rule: CMD writes into a file of its own run (recipes/once_results.py),
which counts from the instant at which its result is published; a supervisor (cli/supervisor.py)
holds the lock beside CMD, so that kill -9 of lifehold stops CMD instead of leaving it alone.
"""

from __future__ import annotations

import json
import os
import select
from binascii import crc32
from contextlib import contextmanager
from functools import partial

from ..core import explain
from ..core.errors import InvalidArgument, LeaseLost, LifeholdError, NotAcquired, SystemRefused
from ..core.mask import printable
from ..local import lock_names
from ..local.refusals import make_folders
from ..recipes.once import OnceRules, refuse_session
from ..recipes.once_build import LOCK, begin, put_in_place, site_of, target_of
from ..recipes.once_results import COMMAND, LIMIT, Codec, packed
from ..runtime import clock
from . import exits
from .child import CannotStart
from .locks import CommandLock, doubles_text, take
from .options_once import ONCE, name_and_command, refuse_name
from .options_run import RUN
from .render import forget_stdout, say
from .run import LOST, NOT_STARTED, RAN, LockedCommand, RunReport
from .signals import RESTORED
from .terminal import Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..lock import Lease
    from ..recipes.once_build import BuildFolder, Staging
    from ..recipes.once_results import OnceResult, OnceRun
else:
    import _signal as signal  # without `enum`, which costs 4 ms

TRIES = 100  # how often a result may be replaced while we open its output
# What `run` can be told and `once` cannot is as `run` has it when it is not told.
PLAIN = {option.name: option.default for option in RUN.options}


def once(words: list[str]) -> int:
    """The exit code of `lifehold once WORDS`."""
    from .options import arguments

    given, rest = arguments(ONCE, words)
    name, command = name_and_command(given, rest, words)
    if not hasattr(os, "posix_spawnp"):
        raise SystemRefused("`lifehold once` needs Unix; here use lifehold.once from Python")
    chosen: dict[str, Any] = PLAIN | given | {"close": True}
    if chosen["build"] is not None:
        refuse_name(chosen["build"], command)
        build = Build(chosen["build"])
        return Once(build.name, command, chosen, build).to_the_end()
    return Once(name, command, chosen).to_the_end()


class Once:
    """One call of the command. `build`: of what --build names."""

    def __init__(
        self, name: str, command: list[str], given: dict[str, Any], build: Build | None = None
    ) -> None:
        self.name, self.command, self.given, self.build = name, command, given, build
        keep = given["keep"]
        if keep is None and (given["unless"] is not None or given["build"] is not None):
            keep = 0.0
        codec = Codec(None, None, LIMIT)
        refuse_session(given["kind"])
        self.rules = OnceRules(name, keep, given["keep_failure"], None, codec, {})
        self.report = OnceReport(self.rules.name, lock_names.shown(self.rules.path), given)
        self.report.anew = self.report.anew if build is None else build.anew

    def to_the_end(self) -> int:
        """The exit code."""
        try:
            if self.given["forget"]:
                self.rules.results.forget()
                return self.report.end(FORGOTTEN, exits.DONE)
            return self._asked()
        except (LifeholdError, OSError) as error:
            if not self.given["json"] or isinstance(error, NotAcquired):
                raise
            text = error.text if isinstance(error, LifeholdError) else exits.text_of(error)
            return self.report.end(ERROR, exits.code_of(error), text=text)

    def _asked(self) -> int:
        address = lock_names.address(self.name)
        if address.doubles:
            say(doubles_text(self.name, address))
        if self._needless():
            return self._unneeded()
        seen, ready = self._kept()
        if ready is not None:
            return self._replay(*ready)
        lock = CommandLock(self.name, address, self.given)

        account = RunReport([lock], self.command, self.given | {"json": False})
        account.listen()
        try:
            leases = take([lock], self.given["wait"])
        except NotAcquired as error:
            return self._held(error, account)
        return self._let_in(leases[0], seen, account)

    def _kept(self) -> tuple[int, tuple[OnceResult, int] | None]:
        """The number of the latest result, and it with its open output if it counts."""
        for _ in range(TRIES):
            seen, result = self.rules.arrive()
            if result is None:
                return seen, None
            try:
                return seen, (result, self._opened(result))
            except FileNotFoundError:
                continue  # a later run has come
        return seen, None

    def _let_in(self, lease: Lease, seen: int, account: Any) -> int:
        """With the lock in hand, which is let go of before any output."""
        ready = check = None
        try:
            ready = self._came(seen)
            if ready is None and self.given["unless"] is not None:
                check = LockedCheck(lease, self.given, account)
                check.ask()
                if check.why:
                    return self._stopped(check)
            needless = self._needless() if check is None else check.code == 0
            if ready is None and not needless:
                run = self.rules.begin(lease)
                if run.latest > seen and (ready := self._came(seen)) is not None:
                    run.withdraw()
                else:
                    return self._run(lease, run, account, check)
        finally:
            try:
                lease.release()
            except LifeholdError:
                pass  # done by then, or told already
            if check is not None:
                check.hear_signals()
        return self._unneeded() if ready is None else self._replay(*ready)

    def _came(self, seen: int) -> tuple[OnceResult, int] | None:
        result = self.rules.let_in(seen)
        try:
            return None if result is None else (result, self._opened(result))
        except FileNotFoundError:
            return None  # by somebody's hand

    def _stopped(self, check: LockedCheck) -> int:
        """CHECK gave no answer, so nothing is run."""
        code = check.let_go()
        self.report.end(check.outcome, code, text=check.why)
        check.as_typed(code)
        return code

    def _run(self, lease: Lease, run: Any, account: object, check: LockedCheck | None) -> int:
        if self.build is None:
            return self._runs(lease, run, account, partial(OnceHold, check=check))
        with self.build.begun(run) as hold:
            return self._runs(lease, run, account, hold)

    def _runs(self, lease: Lease, run: Any, account: Any, made: Any) -> int:
        try:
            spool = self.rules.results.spool(run.number)
        except LifeholdError:
            run.withdraw()
            raise
        self.report.stop_waiting()
        account.took([lease])
        hold = made(lease, self.command, self.given, account, run, spool)
        code: int = hold.to_the_end()
        code = hold.pass_on(code)
        facts = hold.facts if run.published else None
        self.report.end(hold.outcome, code, facts=facts, number=run.number, text=hold.why)
        hold.as_typed(code)
        return code

    # ---- without running

    def _needless(self) -> bool:
        """Whether CHECK says that CMD is not needed, or the folder is there."""
        if self.build is not None:
            return self.build.site.published()
        check = self.given["unless"]
        if check is None:
            return False
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would reap CHECK for us
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            pid = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", check],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, null, stream) for stream in (0, 1)],
                setsigdef=RESTORED,
            )
        finally:
            os.close(null)
        return os.waitpid(pid, 0)[1] == 0

    def _unneeded(self) -> int:
        why = "--unless says it need not be" if self.build is None else self.build.why
        self.report.verbose(f"'{printable(self.rules.name)}' is not run: {why}")
        return self.report.end(UNNEEDED, exits.DONE)

    def _held(self, error: NotAcquired, account: Any) -> int:
        code = exits.HELD if self.given["conflict"] is None else int(self.given["conflict"])
        error.args = (error.text.replace("lifehold run ", "lifehold once "),)
        account.refused(error, code)
        return self.report.end(HELD, code, text=error.text)

    def _opened(self, result: OnceResult) -> int:
        """The output of a result, open. Raises FileNotFoundError when a later one has come."""
        if result.kind != COMMAND:
            raise InvalidArgument(
                f"'{printable(self.rules.name)}' is the name of a Python function that ran once, "
                "not of a command: give the command a name of its own, or remove what is kept with "
                "`lifehold once --forget`",
                name=self.rules.name,
            )
        opened: int = self.rules.results.output(result.number, result.content)
        return opened

    def _replay(self, result: OnceResult, output: int) -> int:
        self.report.replaying(result)
        try:
            replay(output, int(result.facts["size"]))
        finally:
            os.close(output)
        if "whole" in result.facts:
            say(f"'{printable(self.rules.name)}': {cut_text(result.facts)}")
        code, number = int(result.facts["code"]), result.number
        return self.report.end(REPLAYED, code, facts=result.facts, number=number)


# ------------------------------------------------------------------------------------------------
# CHECK and CMD of a `lifehold once` under the lock: CMD from its start until its result is
# published.
#
# Promise: a result is published when CMD ended by itself, and never after it was ended from outside
# or the lock was lost. The lock is let go of before the rest of the output is passed on. CHECK is
# gone before the lock is free, and what ends it from outside is no answer of it.


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# CMD's status after a signal from outside; a crash of its own (SEGV, ABRT ...) is a failure.
FROM_OUTSIDE = frozenset(exits.SIGNAL + int(number) for number in (*ENDING, signal.SIGKILL))
CUT = (
    "has opened its stdout anew, which is a file, and written over what had been passed on: there "
    "is no result. Write >> /dev/stdout or >&1 there, not > /dev/stdout"
)


class NotedCommand(LockedCommand):
    """`asked_to_end`: the last signal by which we were asked to end, 0 before."""

    def __init__(
        self,
        lease: Lease,
        command: list[str],
        given: dict[str, Any],
        report: RunReport,
        before: LockedCommand | None = None,
    ) -> None:
        super().__init__([lease], command, given, report, before)
        self.asked_to_end = 0
        self.lent = False
        self.unstarted = ""  # why
        self.terminal = self.care.terminal = Terminal()
        self.terminal.decide()
        self._note_signals()

    def _note_signals(self) -> None:
        plain = self.inbox.next

        def noted(seconds: float) -> int | None:
            found = plain(seconds)
            if found in ENDING:
                self.asked_to_end = found
            return found

        self.inbox.next = noted  # type: ignore[method-assign]

    def hear_signals(self) -> None:
        """As before: what came meanwhile ends us now."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self.inbox.mask)

    def as_typed(self, code: int) -> None:
        """Raises KeyboardInterrupt when Ctrl-C was what ended it."""
        self._as_typed(code, self.lent)


class LockedCheck(NotedCommand):
    """CHECK of --unless. `code`: its exit code, which is an answer unless there is a `why`."""

    def __init__(self, lease: Lease, given: dict[str, Any], report: RunReport) -> None:
        super().__init__(lease, ["/bin/sh", "-c", given["unless"]], given, report)
        self.care.what = "the CHECK of --unless"
        self.code, self.why, self.outcome = 0, "", ENDED

    def ask(self) -> None:
        """Run it to its end, with nothing to read and nobody to read it."""
        self.lent = self.terminal.to_be_lent()
        kept = [(number, os.dup(number), os.get_inheritable(number)) for number in (0, 1)]
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            for number, *_ in kept:
                os.dup2(null, number)
            self.code = self._run(lend=self.lent)
        except CannotStart as refused:
            self.code, self.unstarted = refused.code, str(refused)
            say(self.unstarted)
        finally:
            for number, own, inherited in kept:
                os.dup2(own, number, inherited)
                os.close(own)
            os.close(null)
        self._judge()

    def _judge(self) -> None:
        by_signal = self.care.by_signal and self.code in FROM_OUTSIDE
        if self.lost or self.care.overdue:
            self.why, self.outcome = self.lost or "its lock was lost", ONCE_LOST
        elif self.unstarted:
            self.why, self.outcome = self.unstarted, ERROR
        elif by_signal or (self.asked_to_end and self.code):
            if self.asked_to_end:
                self.code = exits.SIGNAL + self.asked_to_end
            self.why = f"{self.care.what} was ended from outside ({self.code})"
            say(f"'{printable(self.leases[0].name)}': {self.why}: nothing is run")

    def let_go(self) -> int:
        """The exit code, with the lock let go of."""
        return self._let_go(self.code)


class OnceHold(NotedCommand):
    """One run. `spool`: the open file that is CMD's stdout; `put`: brings its work to its place."""

    def __init__(
        self,
        lease: Lease,
        command: list[str],
        given: dict[str, object],
        report: RunReport,
        run: OnceRun,
        spool: int,
        put: Callable[[int, str], int] | None = None,
        check: LockedCheck | None = None,
    ) -> None:
        super().__init__(lease, command, given, report, check)
        self.once, self.spool, self._put = run, spool, put
        self.until = self.care.until
        self.late = False  # whether a loss was noticed only when CMD had ended
        self.cut = ""  # why its output is none for the others
        self.facts: dict[str, object] = {}
        self.stdout = os.dup(1)
        self.follower = Follower(spool, self.stdout)

    def to_the_end(self) -> int:
        """The exit code."""
        self.lent = self.terminal.to_be_lent()
        self.care.until = clock.now()  # from the beginning on
        child = None
        try:
            os.dup2(self.spool, 1)
            try:
                code = child = self._run(lend=self.lent)
                outcome = RAN
            except CannotStart as refused:
                code, outcome, self.unstarted = refused.code, NOT_STARTED, str(refused)
                say(self.unstarted)
            finally:
                os.dup2(self.stdout, 1)
            if outcome == RAN:
                code = self._publish(code)
        finally:
            self.once.withdraw()  # unless it was published
        released = self._let_go(code)
        code = code or exits.LOST if self.late else released
        self.report.ended(code, child, self.lost, LOST if self.lost else outcome)
        return code

    def pass_on(self, code: int) -> int:
        """The rest of the output, with the lock let go of and signals as they were; the code."""
        self.hear_signals()
        self.follower.rest()
        error = self.follower.error
        if error is None or isinstance(error, BrokenPipeError):
            return code
        say(f"the output of {self.care.what} cannot be written to stdout: {error.strerror}")
        return code or exits.REFUSED

    @property
    def why(self) -> str:
        """There is no result, in words."""
        return self.lost or self.unstarted or self.cut

    @property
    def outcome(self) -> str:
        """In the words of the report."""
        if self.lost:
            return ONCE_LOST
        if self.unstarted:
            return ERROR
        return ONCE_RAN if self.once.published else ENDED

    def _why_stop(self) -> str | None:
        self.follower.pump()
        now = clock.now()
        self.care.until = self.until
        why = super()._why_stop()
        self.care.until = min(self.until, now + self.follower.pause)
        return why

    def _publish(self, code: int) -> int:
        """The exit code, which a result has from here on."""
        lease = self.leases[0]
        name = f"'{printable(lease.name)}'"
        if self.lost:
            return code
        if code in FROM_OUTSIDE or (self.asked_to_end and code):
            say(
                f"{name}: {self.care.what} was ended from outside ({code}): there is no result, "
                "and whoever waits runs it next"
            )
            return code
        try:
            lease.check()
            if not self.follower.is_whole():
                self.cut = f"{self.care.what} ended with {code}, and {CUT}"
                say(f"{name}: {self.cut}")
                return code or exits.REFUSED
            if self._put is not None:
                code = self._put(code, self.care.what)
            os.fsync(self.spool)
            size = os.fstat(self.spool).st_size
            output = self.once.results.with_output(self.spool, size)
            kept = min(size, self.once.results.most)
            cut = {"whole": size} if kept < size else {}
            content = packed(COMMAND, lease.token, output, code=code, size=kept, **cut)
            self.facts = json.loads(content.partition(b"\n")[0])
            self.once.publish(content)
            if cut:
                say(f"{name}: {cut_text(self.facts)}")
        except LeaseLost as error:
            self.lost, self.late = error.text, True
            say(f"{error.text}; {self.care.what} had ended with {code}")
        except (LifeholdError, OSError) as error:
            say(
                f"{name}: {self.care.what} ended with {code}, and its output cannot be kept for "
                f"the others: {error}"
            )
        return code


def cut_text(facts: dict[str, Any]) -> str:
    """For who gets the beginning of an output that a store has no room for."""
    return (
        f"its output of {facts['whole']:,} bytes is too large to be kept in a store: the first "
        f"{facts['size']:,} of it are, with its status, for those who did not run it"
    )


# ------------------------------------------------------------------------------------------------
# `lifehold once --build DIR -- CMD`: a folder that one CMD fills, there as a whole for all.
#
# Promise: who ends with 0 finds at DIR all that one CMD made; whatever is killed at any instant
# leaves nothing there. Rule: that of recipes/once_build.py, whose `BuildFolder` it uses: CMD fills
# the folder that LIFEHOLD_BUILD names, which is renamed to DIR when CMD has ended with 0, and
# before any waiter is told so.


VARIABLE = "LIFEHOLD_BUILD"  # where CMD finds the folder that it fills
EMPTY = 1  # the status of a CMD that left nothing in it


class Build:
    """A folder that is to be built. `name`: its lock; `anew`: how to have it built again."""

    def __init__(self, path: str) -> None:
        if not hasattr(os, "fwalk"):
            raise SystemRefused("--build needs Unix, where a folder can be renamed over another")
        target = target_of(path)
        self.site, self.name = site_of(target), target + LOCK
        self.anew = f"rm -r {explain.quote(target)}"
        self.why = f"'{printable(target)}' is there"
        make_folders(self.site.files, target)

    @contextmanager
    def begun(self, run: OnceRun) -> Iterator[Callable[..., OnceHold]]:
        """With a folder for CMD to fill: what holds CMD."""
        try:
            staging = begin(self.site)
        except BaseException:
            run.withdraw()
            raise
        mine = os.getpid()
        os.environ[VARIABLE] = staging.path
        try:
            yield partial(OnceHold, put=partial(_put, self.site, staging))
        finally:
            staging.end(mine)


def _put(site: BuildFolder, staging: Staging, code: int, what: str) -> int:
    """The exit code of CMD, called `what`: 0 only when the folder is in its place."""
    if code:
        return code
    shown = f"'{printable(site.target)}'"
    try:
        put_in_place(site, staging, True)
    except LeaseLost:
        raise
    except InvalidArgument:
        say(
            f"{what} left nothing in the folder that becomes {shown}: it has to write into the "
            f"folder that ${VARIABLE} names"
        )
        return EMPTY
    except (LifeholdError, OSError) as error:
        say(f"{shown} cannot be put in its place: {error}")
        return exits.REFUSED
    return code


# ------------------------------------------------------------------------------------------------
# What became of a `lifehold once`, for people and programs: words on stderr, one line of JSON.
#
# Promise: who gets what another run made is told so, with whose and how old it is: nothing is
# dropped in silence. With --json our last words are the one line (schema lifehold.once/1,
# docs/reference/once.schema.json). The history of the lock is written by cli/run.py.


SCHEMA = "lifehold.once/1"
ONCE_RAN, REPLAYED, UNNEEDED, HELD = "ran", "replayed", "unneeded", "held"
ONCE_LOST, ENDED, FORGOTTEN, ERROR = "lost", "ended", "forgotten", "error"


class OnceReport:
    """The account of one call. `waited`: seconds until CMD ran or it was clear that it does not."""

    def __init__(self, name: str, path: str, given: dict[str, object]) -> None:
        self.name, self.path, self.given = name, path, given
        self._asked_at = clock.now()
        self.waited: float | None = None
        self.anew = f"lifehold once --forget {explain.quote(name)}"  # how to have it run again

    def stop_waiting(self) -> None:
        """The wait is over."""
        self.waited = clock.now() - self._asked_at

    def verbose(self, text: str) -> None:
        """A line for who asked to hear more."""
        if self.given["verbose"]:
            say(text)

    def replaying(self, result: OnceResult) -> None:
        """Whose output follows, and how to have it made anew."""
        self.stop_waiting()
        age, code = result.age(), result.facts["code"]
        ago = f", {explain.span(age)} ago" if age < float("inf") else ""
        say(
            f"'{printable(self.name)}' is not run again: what {result.by()} got follows "
            f"(status {code}{ago}); to have it run anew: {self.anew}"
        )

    def end(
        self,
        outcome: str,
        code: int,
        *,
        facts: dict[str, object] | None = None,
        number: int | None = None,
        text: str = "",
    ) -> int:
        """The one line, if it was asked for; the exit code."""
        if self.waited is None:
            self.stop_waiting()
        if self.given["json"]:
            told = facts or {}
            line = {
                "schema": SCHEMA,
                "outcome": outcome,
                "code": code,
                "name": self.name,
                "path": self.path,
                "waited": round(self.waited or 0.0, 6),
                "number": number,
                "token": told.get("token"),
                "bytes": told.get("size"),
                "made_at": told.get("at"),
                "made_by": {key: told.get(key) for key in ("pid", "host", "user")}
                if told
                else None,
                "text": text or None,
            }
            say(json.dumps(line), prefix="")
        return code


# ------------------------------------------------------------------------------------------------
# What CMD writes to stdout: into a file, from there to everybody, in pieces.
#
# Promise: CMD never waits for a reader of ours; no output is held in memory, however much it is.
# The one who runs CMD sees it while it comes (`Follower.pump`, which never blocks), and the rest
# when the lock has been let go of, so that a paused pager holds up nobody.


PIECE = 1 << 20  # bytes read and written at once where blocking is right
SAFE = 4096  # PIPE_BUF: a pipe that poll(2) calls writable takes so much without blocking
SOON, LATEST = 0.02, 0.5  # seconds between two looks at a file that grows, or does not
AT_MOST = 0.05  # seconds of one pump: signals must not wait for long


class Follower:
    """Copies a growing file to a descriptor, as far as nobody has to wait."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink, self.at, self.sum = source, sink, 0, 0
        self.pause = SOON
        self.error: OSError | None = None  # why nothing can be passed on any more
        self._poll = select.poll()
        self._poll.register(sink, select.POLLOUT)

    def pump(self) -> None:
        """Pass on what has come and can go."""
        began, until = self.at, clock.now() + AT_MOST
        while self.error is None and clock.now() < until and self._ready():
            piece = os.pread(self.source, SAFE, self.at)
            if not piece:
                break
            self._put(piece)
        self.pause = SOON if self.at > began else min(2 * self.pause, LATEST)

    def rest(self) -> None:
        """Pass on all that is left, and wait for who reads it."""
        while self.error is None and (piece := os.pread(self.source, PIECE, self.at)):
            self._put(piece)

    def is_whole(self) -> bool:
        """Whether the file still begins with what has been passed on."""
        at = found = 0
        while at < self.at and (piece := os.pread(self.source, min(PIECE, self.at - at), at)):
            at, found = at + len(piece), crc32(piece, found)
        return (at, found) == (self.at, self.sum)

    def _ready(self) -> bool:
        return bool(self._poll.poll(0))

    def _put(self, piece: bytes) -> None:
        try:
            put = os.write(self.sink, piece)
            self.at, self.sum = self.at + put, crc32(piece[:put], self.sum)
        except BlockingIOError:  # somebody made it non-blocking
            self._poll.poll()
        except OSError as error:
            self.error = error  # nobody reads any more; CMD runs on for the others


def replay(source: int, size: int) -> None:
    """The first `size` bytes of a file to stdout. Raises BrokenPipeError without a reader."""
    at = 0
    while at < size and (piece := os.pread(source, min(PIECE, size - at), at)):
        try:
            at += os.write(1, piece)
        except BlockingIOError:
            select.select([], [1], [])
        except BrokenPipeError:
            raise
        except OSError:
            forget_stdout()
            raise
