"""What a run leaves behind for the others: one line of JSON, then the bytes of the result.

Promise: nothing in the file is executed, unpickled or imported when it is read: a failure comes
back as text. A file that is not whole, after lost power or by another's hand, is no result. What
cannot be handed on is refused with the value in the error, so that nothing is lost.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from ..core.errors import CorruptRecord, InvalidArgument, LifeholdError
from ..core.value import value
from ..runtime import clock, fork
from ..runtime.process import boot_id, here

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
VALUE, FAILURE, COMMAND = "value", "failure", "command"
LIMIT = 16 << 20  # bytes of a result, unless `limit=` says otherwise
LONGEST_TEXT = 64 << 10  # characters of a failure's message, and of its traceback


class OnceFailed(LifeholdError):
    """The run of a `once` raised an exception, for everybody who waited for it.

    `type_name`, `message`, `traceback_text`: of that exception, as text; `token`: of the run;
    `here`: whether it ran in this very call, where it is also the `__cause__`.
    """

    code = "once_failed"
    type_name: str = ""
    message: str = ""
    traceback_text: str = ""
    token: int | None = None
    here: bool = False


class ResultRefused(LifeholdError):
    """The function ended well, and its result cannot be handed on to the others.

    `value`: the result itself, which only this caller has.
    """

    code = "result_refused"
    value: Any = None


@value
class Result:
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
        """Seconds since it was published; infinite when the clock says that it is yet to come.

        By the monotonic clock within one boot, which no step of the wall clock changes.
        """
        boot, up = self.facts.get("boot"), self.facts.get("up")
        if boot is not None and isinstance(up, int | float) and boot == boot_id():
            if (age := clock.now() - up) >= 0:
                return age
        age = clock.utc_now() - float(self.facts.get("at") or 0.0)
        return age if age >= 0 else float("inf")

    def by(self) -> str:
        """Who ran it, for people."""
        host, pid, command = (self.facts.get(key) for key in ("host", "pid", "command"))
        shown = f" ({command})" if command else ""
        return f"pid {pid}{shown} on {host}"


def packed(kind: str, token: int | None, content: bytes = b"", **facts: Any) -> bytes:
    """A result as it stands in its file."""
    me = here()
    line = {
        "lifehold": VERSION, "kind": kind, "token": token, "at": round(clock.utc_now(), 6),
        "boot": boot_id(), "up": round(clock.now(), 6), "pid": me.pid, "host": me.host,
        "user": me.user, "command": me.command, "length": len(content), **facts,
    }  # fmt: skip
    return json.dumps(line).encode() + b"\n" + content


def unpacked(number: int, found: bytes, path: str) -> Result | None:
    """A result as it was packed; None when it is not whole. Raises CorruptRecord for a newer one.

    L12  What a newer version has left is no reason to run again.
    """
    line, newline, content = found.partition(b"\n")
    try:
        facts = json.loads(line) if newline else None
    except ValueError:
        return None
    if not isinstance(facts, dict) or "lifehold" not in facts:
        return None
    if facts["lifehold"] != VERSION:
        raise CorruptRecord(
            f"{path!r} holds a result of version {facts['lifehold']!r}, and this lifehold knows "
            f"{VERSION}: update it here",
            name=path,
        )
    known = facts.get("kind") in (VALUE, FAILURE, COMMAND)
    return Result(number, facts, content) if known and facts.get("length") == len(content) else None


# ---- values ------------------------------------------------------------------------------------


class Codec:
    """How a value becomes bytes: JSON, or the caller's own two functions."""

    __slots__ = ("dump", "limit", "load")

    def __init__(
        self, dump: Callable[[Any], bytes] | None, load: Callable[[bytes], Any] | None, limit: int
    ) -> None:
        if (dump is None) != (load is None):
            raise InvalidArgument("give dump= and load= together: one undoes what the other does")
        for name, call in (("dump", dump), ("load", load)):
            if call is not None and not callable(call):
                raise InvalidArgument(f"{name} must be callable, not {call!r}")
        if type(limit) is not int or limit < 1:
            raise InvalidArgument(f"limit must be a number of bytes, at least 1, not {limit!r}")
        self.dump, self.load, self.limit = dump or to_json, load or json.loads, limit

    def packed(self, name: str, given: Any) -> tuple[bytes, Any]:
        """(its bytes, what they are when they are read again). Raises ResultRefused."""
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
                name, given, f"it has {len(content):,} bytes, and limit={self.limit:,}: return "
                "the path of a file, or raise the limit",
            )  # fmt: skip
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


def _refused(name: str, given: Any, why: str) -> ResultRefused:
    return ResultRefused(
        f"the result of {name!r} cannot be handed on: {why}. It ran, and its result is the `value` "
        "of this error",
        name=name, value=given,
    )  # fmt: skip


def to_json(given: Any) -> bytes:
    """JSON. Raises TypeError for a key that is no str, which JSON would quietly make one."""
    _refuse_keys(given)
    return json.dumps(given, separators=(",", ":")).encode()


def _refuse_keys(given: Any) -> None:
    if isinstance(given, dict):
        for key, item in given.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is {type(key).__name__}, and JSON has str only")
            _refuse_keys(item)
    elif isinstance(given, list | tuple):
        for item in given:
            _refuse_keys(item)


# ---- failures ----------------------------------------------------------------------------------


def failure_facts(error: BaseException) -> dict[str, str]:
    """An exception as text."""
    traceback: Any = fork.lazily("traceback")
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else _dotted(kind)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - whatever its __str__ raises, there was a failure
        message = "(its text cannot be made)"
    lines = traceback.format_exception(error)
    return {
        "type": name, "message": message[:LONGEST_TEXT],
        "traceback": "".join(lines)[-LONGEST_TEXT:],
    }  # fmt: skip


def _dotted(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def failed(name: str, result: Result, *, ran_here: bool) -> OnceFailed:
    """A failure as the error that everybody gets. Nothing is imported for it."""
    facts = result.facts
    if result.kind == COMMAND:
        facts = facts | {"type": "exit", "message": f"status {facts.get('code')}", "traceback": ""}
    kind, message, trace = (str(facts.get(key, "")) for key in ("type", "message", "traceback"))
    who = "" if ran_here else f" (in {result.by()})"
    error = OnceFailed(
        f"{name!r} failed: {kind}: {message}{who}", name=name, type_name=kind, message=message,
        traceback_text=trace, token=cast("int | None", facts.get("token")), here=ran_here,
    )  # fmt: skip
    if trace and not ran_here:
        error.add_note(f"There it was:\n{trace.rstrip()}")
    return error
