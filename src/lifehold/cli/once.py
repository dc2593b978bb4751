"""`lifehold once`: run CMD once, and give its output and exit code to everybody.

Promise: of all who name the same NAME one runs CMD; those who waited get its stdout byte by byte
and its exit code. When lifehold or CMD is killed, CMD is gone before the lock is free, and exactly
one of the others runs it. Rule: CMD writes into a file of its own run (recipes/once_results.py),
which counts from the instant at which its result is published; a supervisor (cli/supervise.py)
holds the lock beside CMD, so that kill -9 of lifehold stops CMD instead of leaving it alone.
"""

from __future__ import annotations

import os

from ..core.errors import InvalidArgument, LifeholdError, NotAcquired, SystemRefused
from ..core.mask import printable
from ..local import lock_names
from ..recipes.once import Rules, refuse_session
from ..recipes.once_results import COMMAND, LIMIT, Codec
from . import exits, once_report
from .once_report import OnceReport
from .options_once import ONCE, name_and_command
from .options_run import RUN
from .render import say
from .spool import replay
from .take import CommandLock, doubles_text, take

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..lock import Lease
    from ..recipes.once_results import Result
    from .once_build import Build

TRIES = 100  # how often a result may be replaced while we open its output
# What `run` can be told and `once` cannot is as `run` has it when it is not told.
PLAIN = {option.name: option.default for option in RUN.options}


def once(words: list[str]) -> int:
    """The exit code of `lifehold once WORDS`."""
    from .options import arguments

    given, rest = arguments(ONCE, words)
    name, command = name_and_command(given, rest)
    if not hasattr(os, "posix_spawnp"):
        raise SystemRefused("`lifehold once` needs Unix; here use lifehold.once from Python")
    chosen: dict[str, Any] = PLAIN | given | {"close": True}
    if chosen["build"] is not None:
        from .once_build import Build

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
        self.rules = Rules(name, keep, given["keep_failure"], None, codec, {})
        self.report = OnceReport(self.rules.name, lock_names.shown(self.rules.path), given)
        self.report.anew = self.report.anew if build is None else build.anew

    def to_the_end(self) -> int:
        """The exit code."""
        if self.given["forget"]:
            self.rules.shelf.forget()
            return self.report.end(once_report.FORGOTTEN, exits.DONE)
        try:
            return self._asked()
        except LifeholdError as error:
            if not self.given["json"] or isinstance(error, NotAcquired):
                raise
            return self.report.end(once_report.ERROR, exits.code_of(error), text=error.text)

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
        from .report import Report

        account = Report([lock], self.command, self.given | {"json": False})
        try:
            leases = take([lock], self.given["wait"])
        except NotAcquired as error:
            return self._held(error, account)
        return self._let_in(leases[0], seen, account)

    def _kept(self) -> tuple[int, tuple[Result, int] | None]:
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
        ready = None
        try:
            ready = self._came(seen)
            if ready is None and not self._needless():
                run = self.rules.begin(lease)
                if run.latest > seen and (ready := self._came(seen)) is not None:
                    run.withdraw()
                else:
                    return self._run(lease, run, account)
        finally:
            try:
                lease.release()
            except LifeholdError:
                pass  # done by then, or told already
        return self._unneeded() if ready is None else self._replay(*ready)

    def _came(self, seen: int) -> tuple[Result, int] | None:
        result = self.rules.let_in(seen)
        try:
            return None if result is None else (result, self._opened(result))
        except FileNotFoundError:
            return None  # by somebody's hand

    def _run(self, lease: Lease, run: Any, account: Any) -> int:
        from .once_hold import OnceHold

        if self.build is None:
            return self._runs(lease, run, account, OnceHold)
        with self.build.begun(run) as hold:
            return self._runs(lease, run, account, hold)

    def _runs(self, lease: Lease, run: Any, account: Any, made: Any) -> int:
        try:
            spool = self.rules.shelf.spool(run.number)
        except LifeholdError:
            run.withdraw()
            raise
        self.report.stop_waiting()
        account.took([lease])
        hold = made(lease, self.command, self.given, account, run, spool)
        code: int = hold.to_the_end()
        code = hold.pass_on(code)
        facts = hold.facts if run.published else None
        self.report.end(hold.outcome, code, facts=facts, number=run.number, text=hold.lost)
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
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            pid = os.posix_spawn(
                "/bin/sh", ["sh", "-c", check], os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)],
            )  # fmt: skip
        finally:
            os.close(null)
        return os.waitpid(pid, 0)[1] == 0

    def _unneeded(self) -> int:
        why = "--unless says it need not be" if self.build is None else self.build.why
        self.report.verbose(f"'{printable(self.rules.name)}' is not run: {why}")
        return self.report.end(once_report.UNNEEDED, exits.DONE)

    def _held(self, error: NotAcquired, account: Any) -> int:
        code = exits.HELD if self.given["conflict"] is None else int(self.given["conflict"])
        error.args = (error.text.replace("lifehold run ", "lifehold once "),)
        account.refused(error, code)
        return self.report.end(once_report.HELD, code, text=error.text)

    def _opened(self, result: Result) -> int:
        """The output of a result, open. Raises FileNotFoundError when a later one has come."""
        if result.kind != COMMAND:
            raise InvalidArgument(
                f"'{printable(self.rules.name)}' is the name of a Python function that ran once, "
                "not of a command: give the command a name of its own, or remove what is kept with "
                "`lifehold once --forget`",
                name=self.rules.name,
            )
        opened: int = self.rules.shelf.output(result.number, result.content)
        return opened

    def _replay(self, result: Result, output: int) -> int:
        self.report.replaying(result)
        try:
            replay(output, int(result.facts["size"]))
        finally:
            os.close(output)
        code, number = int(result.facts["code"]), result.number
        return self.report.end(once_report.REPLAYED, code, facts=result.facts, number=number)
