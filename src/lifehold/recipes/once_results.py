"""What a run leaves behind for the others: one line of JSON, then the bytes of the result.

Promise: nothing in the file is executed, unpickled or imported when it is read: a failure comes
back as text. A file that is not whole, after lost power or by another's hand, is no result. What
cannot be handed on is refused with the value in the error, so that nothing is lost.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
from typing import Any, cast

from ..core.backend import keeps
from ..core.errors import (
    CorruptRecord,
    InvalidArgument,
    LeaseLost,
    LifeholdError,
    SystemRefused,
    UnsafeGround,
)
from ..core.fence import LARGEST
from ..core.grant import Single
from ..core.value import value
from ..local.files import CREATE, READ_ONLY, READ_WRITE
from ..local.refusals import refused
from ..registry import store_at
from ..runtime import clock, fork
from ..runtime.process import boot_id, here
from ..store.site import checked, decoded

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tempfile
    import traceback
    from collections.abc import Callable

    from ..core.backend import State
    from ..local.files import Files
else:
    tempfile = fork.later("tempfile", globals())
    traceback = fork.later("traceback", globals())

VERSION = 1
VALUE, FAILURE, COMMAND = "value", "failure", "command"
HIGHEST_CODE = 255  # of a command
LIMIT = 16 << 20  # bytes of a result, unless `limit=` says otherwise
LONGEST_TEXT = 32 << 10  # characters of a failure's message, and of its traceback


class OnceFailed(LifeholdError):
    """The run of a `once` raised an exception, for everybody who waited for it.

    `type_name`, `message`, `traceback_text`: of that exception, as text; `token`: of the run;
    `here`: whether it ran in this very call, where it is also the `__cause__`; `untold`: why it
    could not be told to the others then, None where it was.
    """

    code = "once_failed"
    type_name: str = ""
    message: str = ""
    traceback_text: str = ""
    token: int | None = None
    here: bool = False
    untold: LifeholdError | None = None


class ResultRefused(LifeholdError):
    """The function ended well, and its result cannot be handed on to the others.

    `value`: the result itself, which only this caller has.
    """

    code = "result_refused"
    value: Any = None


@value
class OnceResult:
    """What came of a run. `facts`: the line of JSON; `content`: the bytes behind it."""

    number: int
    facts: dict[str, Any]
    content: bytes

    @property
    def kind(self) -> str:
        return str(self.facts["kind"])

    @property
    def succeeded(self) -> bool:
        return self.kind == VALUE or (self.kind == COMMAND and self.facts.get("code") == 0)

    def age(self) -> float:
        """Seconds since it was published; of one that is yet to come by our clock, seconds until.

        So the clock of another host may stand ahead by less than the age that still counts. Within
        one boot by the monotonic clock, which no step of the wall clock changes.
        """
        boot, up = self.facts.get("boot"), self.facts.get("up")
        if boot is not None and isinstance(up, int | float) and boot == boot_id():
            if (age := clock.now() - up) >= 0:
                return age
        return abs(clock.utc_now() - float(self.facts.get("at") or 0.0))

    def by(self) -> str:
        """Who ran it, for people."""
        host, pid, command = (self.facts.get(key) for key in ("host", "pid", "command"))
        shown = f" ({command})" if command else ""
        return f"pid {pid}{shown} on {host}"


def packed(kind: str, token: int | None, content: bytes = b"", **facts: object) -> bytes:
    """A result as it stands in its file."""
    me = here()
    line = {
        "lifehold": VERSION,
        "kind": kind,
        "token": token,
        "at": round(clock.utc_now(), 6),
        "boot": boot_id(),
        "up": round(clock.now(), 6),
        "pid": me.pid,
        "host": me.host,
        "user": me.user,
        "command": me.command,
        "length": len(content),
        **facts,
    }
    return json.dumps(line).encode() + b"\n" + content


def unpacked(number: int, found: bytes, path: str) -> OnceResult | None:
    """A result as it was packed; None when it is not whole. Raises CorruptRecord for a newer one.

    L12  What a newer version has left is no reason to run again.
    """
    line, newline, content = found.partition(b"\n")
    try:
        facts = json.loads(line) if newline else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict) or "lifehold" not in facts:
        return None
    if facts["lifehold"] != VERSION:
        raise CorruptRecord(
            f"{path!r} holds a result of version {facts['lifehold']!r}, and this lifehold knows "
            f"{VERSION}: update it here",
            name=path,
        )
    whole = facts.get("length") == len(content) and _as_packed(facts)
    return OnceResult(number, facts, content) if whole else None


def _as_packed(facts: dict[str, Any]) -> bool:
    """Whether each fact that is used is of the form in which a run writes it."""
    kind, up, token = (facts.get(key) for key in ("kind", "up", "token"))
    texts = ("type", "message", "traceback")
    return (
        kind in (VALUE, FAILURE, COMMAND)
        and _is_time(facts.get("at"))
        and (up is None or _is_time(up))
        and (token is None or _is_count(token))
        and all(isinstance(facts.get(key, ""), str) for key in texts)
        and (kind != COMMAND or _as_of_command(facts))
    )


def _as_of_command(facts: dict[str, Any]) -> bool:
    code, size = facts.get("code"), facts.get("size")
    counts = all(map(_is_count, (code, size, facts.get("whole", size))))
    return counts and code in range(HIGHEST_CODE + 1)


def _is_time(given: Any) -> bool:
    """Seconds that a clock can have said."""
    return type(given) in (int, float) and 0 <= given <= LARGEST


def _is_count(given: Any) -> bool:
    return type(given) is int and 0 <= given <= LARGEST


class Codec:
    """How a value becomes bytes: JSON, or the caller's own two functions."""

    __slots__ = ("dump", "limit", "load")

    def __init__(
        self,
        dump: Callable[[Any], bytes] | None,
        load: Callable[[bytes], object] | None,
        limit: int,
    ) -> None:
        if (dump is None) != (load is None):
            raise InvalidArgument("give dump= and load= together: one undoes what the other does")
        for name, call in (("dump", dump), ("load", load)):
            if call is not None and not callable(call):
                raise InvalidArgument(f"{name} must be callable, not {call!r}")
        if type(limit) is not int or limit < 1:
            raise InvalidArgument(f"limit must be a number of bytes, at least 1, not {limit!r}")
        self.dump, self.load, self.limit = dump or to_json, load or json.loads, limit

    def packed(self, name: str, given: object, most: float) -> tuple[bytes, Any]:
        """(its bytes, what they are when they are read again). Raises ResultRefused.

        `most`: bytes for which there is room where they are kept.
        """
        remedy = ""
        try:
            content = self.dump(given)
        except Exception as error:
            if self.dump is to_json:
                remedy = ": return what JSON can hold, or give dump= and load="
            raise _refused(name, given, f"{error}{remedy}") from error
        if not isinstance(content, bytes):
            raise _refused(name, given, f"dump= made {type(content).__name__} of it, not bytes")
        if len(content) > self.limit:
            raise _refused(
                name,
                given,
                f"it has {len(content):,} bytes, and limit={self.limit:,}: return "
                "the path of a file, or raise the limit",
            )
        if len(content) > most:
            raise _refused(
                name,
                given,
                f"it has {len(content):,} bytes, and a store keeps {most:,} at most: return the "
                "path of a file",
            )
        try:
            return content, self.load(content)
        except Exception as error:
            why = f"load= cannot read what dump= made of it: {type(error).__name__}: {error}"
            raise _refused(name, given, why) from error

    def unpacked(self, name: str, content: bytes) -> Any:
        """The value again. Raises CorruptRecord when `load` cannot read it."""
        try:
            return self.load(content)
        except Exception as error:
            raise CorruptRecord(
                f"the result of {name!r} cannot be read by load= ({type(error).__name__}: "
                f"{error}): was it made by another dump=? To run it anew: "
                f"lifehold.recipes.once.forget({name!r})",
                name=name,
            ) from error


def _refused(name: str, given: object, why: str) -> ResultRefused:
    return ResultRefused(
        f"the result of {name!r} cannot be handed on: {why}. It ran, and its result is the `value` "
        "of this error",
        name=name,
        value=given,
    )


def to_json(given: object) -> bytes:
    """JSON. Raises TypeError for a key that is no str, which JSON would quietly make one."""
    _refuse_keys(given)
    return json.dumps(given, separators=(",", ":")).encode()


def _refuse_keys(given: object) -> None:
    if isinstance(given, dict):
        for key, item in given.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is {type(key).__name__}, and JSON has str only")
            _refuse_keys(item)
    elif isinstance(given, list | tuple):
        for item in given:
            _refuse_keys(item)


def failure_facts(error: BaseException) -> dict[str, str]:
    """An exception as text."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else _dotted(kind)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - whatever its __str__ raises, there was a failure
        message = "(its text cannot be made)"
    lines = traceback.format_exception(error)
    return {
        "type": name,
        "message": message[:LONGEST_TEXT],
        "traceback": "".join(lines)[-LONGEST_TEXT:],
    }


def _dotted(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def failed(name: str, result: OnceResult, *, ran_here: bool) -> OnceFailed:
    """A failure as the error that everybody gets. Nothing is imported for it."""
    facts = result.facts
    if result.kind == COMMAND:
        facts = facts | {"type": "exit", "message": f"status {facts.get('code')}", "traceback": ""}
    kind, message, trace = (str(facts.get(key, "")) for key in ("type", "message", "traceback"))
    who = "" if ran_here else f" (in {result.by()})"
    error = OnceFailed(
        f"{name!r} failed: {kind}: {message}{who}",
        name=name,
        type_name=kind,
        message=message,
        traceback_text=trace,
        token=cast("int | None", facts.get("token")),
        here=ran_here,
    )
    if trace and not ran_here:
        error.add_note(f"There it was:\n{trace.rstrip()}")
    return error


# ------------------------------------------------------------------------------------------------
# The folder of one `once`: who has begun a run, and what came of the last one.
#
#    > NUMBER.run  a run under way, or what a crash left of it
#    > NUMBER.done  the result of a run; the highest number is the latest
#    > NUMBER.out  what a command wrote, if it was a command
#
# Promise: a result is seen whole or not at all; a run that has lost its lock never puts its result
# over, nor after, that of a later run. How it could fail, and what keeps it:
# - Killed while writing: the result is written into NUMBER.run, flushed, and then renamed.
# - A late writer, paused until its lock was taken over: whoever begins later removes every lower
#   NUMBER.run *before* it looks for results. The late rename comes before that, and the later run
#   finds the result and need not run; or it comes after, and the kernel finds no such file.
# - A late beginner, paused between its grant and its NUMBER.run: it looks again after making the
#   file, sees a higher number, and withdraws.
# The number is the fencing token of the grant. Where the counter was lost and the clock set back
# (L4), it is one more than the highest here, once the lock is known to be still ours.


DIGITS = 20
RUN, DONE, OUT = ".run", ".done", ".out"
TRIES = 100  # how often a result may be replaced while we open it
PIECE = 1 << 20  # bytes of one read


@value
class Listing:
    """The numbers in the folder, by what they stand for."""

    runs: tuple[int, ...] = ()
    dones: tuple[int, ...] = ()
    outs: tuple[int, ...] = ()

    @property
    def highest(self) -> int:
        return max((0, *self.runs, *self.dones, *self.outs))

    @property
    def latest(self) -> int:
        """The number of the latest result, 0 when there is none."""
        return max((0, *self.dones))


class ResultFolder:
    """The results of one name. `shared`: all users who may write there are trusted."""

    __slots__ = ("files", "path", "shared")
    most = float("inf")  # bytes of a result

    def __init__(self, files: Files, path: str, shared: bool = False) -> None:
        self.files, self.path, self.shared = files, path, shared

    def name(self, number: int, what: str) -> str:
        """The path of a file in here."""
        return f"{self.path}/{number:0{DIGITS}d}{what}"

    def listing(self) -> Listing:
        """What is there now. One look. Raises InvalidArgument for what is no folder."""
        try:
            self._refuse_link(self.files.lstat(self.path))
            names = self.files.listdir(self.path)
        except FileNotFoundError:
            return Listing()
        except OSError as error:
            raise refused(self.path, error) from error
        found: dict[str, list[int]] = {RUN: [], DONE: [], OUT: []}
        for name in names:
            number, end = name[:DIGITS], name[DIGITS:]
            ours = end in found and number.isascii() and number.isdecimal()
            if ours and int(number) <= LARGEST:
                found[end].append(int(number))
        return Listing(*(tuple(sorted(found[end])) for end in (RUN, DONE, OUT)))

    def read(self) -> tuple[int, bytes] | None:
        """(number, content) of the latest result; None when there is none.

        Raises UnsafeGround for what another user has put there.
        """
        for _ in range(TRIES):
            number = self.listing().latest
            if not number:
                return None
            try:
                return number, self._content(self.name(number, DONE))
            except FileNotFoundError:
                continue  # a later one has come
            except OSError as error:
                raise refused(self.path, error) from error
        raise refused(self.path, OSError(errno.ESTALE, "its results come and go too fast"))

    def _content(self, path: str) -> bytes:
        fd = self.files.open(path, READ_ONLY)
        try:
            found = self.files.fstat(fd)
            self._refuse_strangers(path, found)
            pieces: list[bytes] = []
            at = 0
            while at < found.st_size and (piece := self.files.pread(fd, PIECE, at)):
                pieces.append(piece)
                at += len(piece)
            return b"".join(pieces)
        finally:
            self.files.close(fd)

    def _refuse_strangers(self, path: str, found: object) -> None:
        owner = getattr(found, "st_uid", 0)
        if not self.shared and owner not in (0, os.geteuid()):
            raise UnsafeGround(
                f"{path!r} was made by another user (uid {owner}), who could make any result of "
                "it: keep results in a folder of your own, or give shared=True to trust all who "
                "may write there",
                name=path,
            )

    def _refuse_link(self, found: Any) -> None:
        """L7  Results are not looked for, put nor removed where somebody's link leads."""
        if not stat.S_ISDIR(found.st_mode):
            raise InvalidArgument(
                f"{self.path!r} is no folder of results: move it away, or choose another name",
                name=self.path,
            )

    def check_folder(self) -> None:
        """Results are put into no folder of another user."""
        try:
            found = self.files.lstat(self.path)
        except FileNotFoundError:
            return
        self._refuse_link(found)
        self._refuse_strangers(self.path, found)

    def make(self, path: str) -> int:
        mode = 0o666 if self.shared else 0o600
        try:
            return fork.descriptor(self.files.open, path, READ_WRITE | CREATE, mode)
        except FileNotFoundError:
            self._make_folder()
        except FileExistsError:
            raise
        except OSError as error:
            raise refused(path, error) from error
        try:
            return fork.descriptor(self.files.open, path, READ_WRITE | CREATE, mode)
        except FileExistsError:
            raise
        except OSError as error:
            raise refused(path, error) from error

    def _make_folder(self) -> None:
        try:
            self.files.mkdir(self.path, 0o777 if self.shared else 0o700)
            if self.shared:
                self.files.chmod(self.path, 0o777)
        except FileExistsError:
            return
        except OSError as error:
            raise refused(self.path, error) from error

    def begin(self, token: int, check: Callable[[], None]) -> Any:
        """The run of a grant. Raises LeaseLost, SystemRefused."""
        return begin(self, token, check)

    # ---- the output of a command

    def spool(self, number: int) -> int:
        """The file for the output of a run, made and open. Raises SystemRefused."""
        path = self.name(number, OUT)
        try:
            flags = READ_WRITE | CREATE | os.O_APPEND
            return fork.descriptor(self.files.open, path, flags, 0o600)
        except OSError as error:
            raise refused(path, error) from error

    def output(self, number: int, _content: bytes) -> int:
        """The output of a result, open. Raises FileNotFoundError when a later one has come."""
        path = self.name(number, OUT)
        try:
            return self.files.open(path, READ_ONLY)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise refused(path, error) from error

    def with_output(self, _fd: int, _size: int) -> bytes:
        """What of the output stands in the result itself: nothing, it has a file of its own."""
        return b""

    def forget(self) -> int:
        """Remove all results; how many there were. A run under way goes on."""
        seen = self.listing()
        for number in seen.dones:
            self.remove(number, DONE)
        for number in set(seen.outs) - set(seen.runs):
            self.remove(number, OUT)
        return len(seen.dones)

    def remove(self, number: int, what: str) -> None:
        """Unlink one file, if it is there."""
        try:
            self.files.unlink(self.name(number, what))
        except FileNotFoundError:
            return
        except OSError as error:
            raise refused(self.path, error) from error


# ------------------------------------------------------------------------------------------------
# One run and its result: its begin, which shuts out all earlier ones, and how it is published.
#
# Promise and rule: see once_results.py. `begin` makes NUMBER.run, removes every lower one, then
# looks for results; `publish` renames. The kernel orders the removal and the rename of one file.


def begin(results: ResultFolder, token: int, check: Callable[[], None]) -> OnceRun:
    """The run of a grant, which nobody with a lower number can publish over any more.

    `check` raises LeaseLost when the lock is not ours by now.
    """
    results.check_folder()
    for _ in range(TRIES):
        highest = results.listing().highest
        if highest >= token:
            check()  # a later holder has begun; or else the counter was lost
        if highest >= LARGEST:
            raise out_of_numbers(results.path, highest)
        run = OnceRun(results, max(token, highest + 1), check)
        try:
            run.open()
        except FileExistsError:
            continue  # of our own, made by a request whose answer was lost
        try:
            run.settle()
        except BaseException:
            run.withdraw()
            raise
        return run
    raise refused(results.path, OSError(errno.ESTALE, "its runs come and go too fast"))


class OnceRun(Single):
    """One run, from its begin to `publish` or `withdraw`.

    `latest`: the number of the latest result at its begin.
    """

    __slots__ = ("_check", "_fd", "latest", "number", "older", "published", "results")

    def __init__(self, results: ResultFolder, number: int, check: Callable[[], None]) -> None:
        self.results, self.number, self._check, self._fd = results, number, check, -1
        self.older = Listing()
        self.latest = 0
        self.published = False

    def open(self) -> None:
        """Make its file. Raises FileExistsError, SystemRefused."""
        self._fd = self.results.make(self.results.name(self.number, RUN))

    def settle(self) -> None:
        """Shut out every earlier run, then see what there is. Raises LeaseLost for a later one."""
        results = self.results
        seen = results.listing()
        earlier = [number for number in seen.runs if number < self.number]
        for number in earlier:
            results.remove(number, RUN)
        if earlier:
            seen = results.listing()  # one of them may have come first
        if seen.highest > self.number:
            raise superseded(results.path)
        for number in set(seen.outs) - set(seen.dones) - {self.number}:
            results.remove(number, OUT)
        self.older, self.latest = seen, seen.latest

    def publish(self, content: bytes) -> None:
        """Make this the latest result, for good once it returns.

        Raises LeaseLost when a later run has begun, whose result it then is not; SystemRefused.
        """
        results, files = self.results, self.results.files
        run, done = results.name(self.number, RUN), results.name(self.number, DONE)
        try:
            at = 0
            while at < len(content):
                at += files.pwrite(self._fd, content[at : at + PIECE], at)
            if results.shared:
                files.fchmod(self._fd, 0o666)
            files.fsync(self._fd)
            try:
                files.rename(run, done)
            except FileNotFoundError:
                if not self._is_at(done):  # over NFS: done, and the reply was lost
                    raise self._removed() from None
            self.published = True
            self._flush_folder()
        except OSError as error:
            raise refused(results.path, error) from error
        for number in self.older.dones:
            self._discard(number, DONE, OUT)
        self._close()

    def _removed(self) -> LifeholdError:
        """Who removed our file: a later run, or somebody's hand. Raises LeaseLost."""
        path = self.results.path
        if self.results.listing().highest > self.number:
            return superseded(path)
        self._check()  # that run may have left nothing
        return SystemRefused(
            f"{path!r}: somebody removed it, or what is in it, while it ran: its result cannot be "
            "kept there",
            name=path,
        )

    def _is_at(self, path: str) -> bool:
        files = self.results.files
        try:
            found = files.lstat(path)
        except FileNotFoundError:
            return False
        mine = files.fstat(self._fd)
        return bool(found.st_ino == mine.st_ino)

    def _flush_folder(self) -> None:
        """So that power loss does not take the name away; where a folder can be flushed."""
        files = self.results.files
        try:
            folder = files.open(self.results.path, READ_ONLY)
            try:
                files.fsync(folder)
            finally:
                files.close(folder)
        except OSError:
            return

    def withdraw(self) -> None:
        """Leave nothing of this run, unless it was published."""
        if not self.published:
            self._discard(self.number, RUN, OUT)
        self._close()

    def _discard(self, number: int, *what: str) -> None:
        for each in what:
            try:
                self.results.files.unlink(self.results.name(number, each))
            except OSError:
                continue  # the next run removes it

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.results.files.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self._close()


def out_of_numbers(path: str, highest: int) -> CorruptRecord:
    """No run can come after one of that number."""
    return CorruptRecord(
        f"{path!r} has a result numbered {highest}, which lifehold cannot have written: no greater "
        f"number would fit 64 bits. Remove {highest:0{DIGITS}d}.* there to begin anew",
        name=path,
    )


def superseded(path: str) -> LeaseLost:
    """Somebody with a later grant has begun."""
    reason = "a later run has begun, so this one's lock was lost"
    return LeaseLost(f"{path!r}: {reason}: its result is not published", name=path, reason=reason)


# ------------------------------------------------------------------------------------------------
# The results of one `once` in a store: kept under the name itself, by the token of who ran it.
#
# Promise: as of a folder of results (once_results.py): a result is seen whole or not at all; a run
# that has lost its lease never puts its result over that of a later one. Rule: the store keeps a
# text only for who holds the name at that very step, so a late writer is refused by the store
# itself.


STORED_LIMIT = 1 << 20  # bytes of a result: a store is no place for files
FACTS = 16 << 10  # of these for the line of facts before a value or an output


class StoreResults:
    """What a name of a store has kept. Used as a `ResultFolder` is."""

    most = STORED_LIMIT - FACTS

    def __init__(self, url: str) -> None:
        where, _, name = url.partition("#")
        self._site: Any = store_at(where)
        self._site.refuse_lacking("kept", "once()")
        self._name = checked(decoded(name))
        self.path = self._site.address(self._name)

    def _state(self) -> State | None:
        return self._site.state(self._name)  # type: ignore[no-any-return]

    def listing(self) -> Listing:
        """The number of the latest result: the token of its run."""
        state = self._state()
        return Listing(dones=(state.kept[0],)) if state and state.kept else Listing()

    def read(self) -> tuple[int, bytes] | None:
        """(number, content) of the latest result; None when there is none."""
        state = self._state()
        if state is None or state.kept is None:
            return None
        token, text = state.kept
        try:
            return token, base64.b64decode(text)
        except ValueError:
            return token, b""  # not written by us: no result

    def begin(self, token: int, check: Callable[[], None]) -> StoreOnceRun:
        """The run of a grant."""
        return StoreOnceRun(self, token, self.listing().latest)

    def keep(self, token: int, content: bytes) -> None:
        """Leave a result. Raises LeaseLost when its run does not hold the name any more."""
        if len(content) > STORED_LIMIT:
            raise SystemRefused(
                f"{self.path!r}: a result of {len(content):,} bytes is too large to be kept in a "
                f"store, {STORED_LIMIT:,} at most: keep it in a file, and return its path",
                name=self.path,
            )
        text = base64.b64encode(content).decode()
        before = self._site.order("keep", self._name, "", token, text)
        if before is None or not keeps(before, token):
            raise superseded(self.path)

    def forget(self) -> int:
        """Remove what is kept; how many results there were."""
        before: State | None = self._site.order("forget", self._name, "")
        return 1 if before is not None and before.kept is not None else 0

    # ---- the output of a command, which is a part of its result here

    def spool(self, number: int) -> int:
        """A file without a name for the output of a run, open."""
        with tempfile.TemporaryFile(buffering=0) as file:
            fd = os.dup(file.fileno())
        fcntl = fork.lazily("fcntl")
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        return fd

    def output(self, number: int, content: bytes) -> int:
        """The output of a result, open at its begin."""
        fd = self.spool(number)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def with_output(self, fd: int, size: int) -> bytes:
        """What is published of an output: its beginning, where a store has no room for more."""
        return os.pread(fd, min(size, self.most), 0)


class StoreOnceRun:
    """One run, from its begin to `publish` or `withdraw`. `latest`: the result at its begin."""

    def __init__(self, results: StoreResults, number: int, latest: int) -> None:
        self.results, self.number, self.latest, self.published = results, number, latest, False

    def publish(self, content: bytes) -> None:
        """Make this the latest result. Raises LeaseLost, StoreUnavailable."""
        self.results.keep(self.number, content)
        self.published = True

    def withdraw(self) -> None:
        """Nothing of it was left."""
