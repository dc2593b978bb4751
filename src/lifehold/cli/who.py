"""`lifehold who`: one lock in words, several as a table, any number as JSON."""

from __future__ import annotations

import os

from ..core import explain
from ..core.errors import LifeholdError
from ..core.mask import printable
from ..core.value import as_dict
from ..local import places
from ..ops import who as ops
from ..runtime import clock
from . import exits
from .options import WHO, arguments
from .render import put, say, table
from .run import doubles_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.grant import Holder

SCHEMA = "lifehold.who/1"
CODES = {
    ops.HELD: exits.DONE,
    ops.FREE: exits.FREE,
    ops.SUSPECT: exits.SUSPECT,
    ops.STALE: exits.SUSPECT,
}
# Of several: what a script must not overlook comes first. "Busy" before "free": is any of them in
# use?
WEIGHT: dict[int, int] = {exits.FREE: 0, exits.DONE: 1, exits.SUSPECT: 2}


def who(words: list[str]) -> int:
    """The exit code of `lifehold who WORDS`."""
    given, names = arguments(WHO, words)
    answers: list[ops.Answer] = []
    codes = []
    for name in names:
        try:
            address = places.address(name)
            if address.doubles:
                say(doubles_text(name, address))
            answers.append(ops.who(name, address.path, plain="/" not in name))
            codes.append(CODES[answers[-1].state])
        except LifeholdError as error:
            shown = f"'{printable(name)}'", f"'{printable(os.path.abspath(name))}'"
            named = error.text.startswith(shown)  # it begins with what it is about
            say(error.text if named else f"{shown[0]}: {error.text}")
            codes.append(exits.code_of(error))
    now = clock.utc_now()
    if given["json"]:
        put(as_json(answers, now))
    elif len(names) == 1 and answers:
        put(in_words(answers[0], now))
    elif answers:
        put(as_table(answers, now))
    return max(codes, key=_weight)


def _weight(code: int) -> int:
    return WEIGHT.get(code, code)


def in_words(answer: ops.Answer, now: float) -> str:
    """One lock over several lines."""
    name = printable(answer.name)
    lock = (
        printable(answer.holder.lock)
        if answer.holder and answer.holder.lock
        else printable(answer.path)
    )
    lines = [f"'{name}' is {answer.state}"]
    if not answer.exists:
        lines[0] += ": nobody has used it yet"
    if answer.holder is not None:
        lines += facts(answer.holder, now)
        lines.append(f"  alive  {explain.alive(answer.holder)}")
    if answer.last is not None:
        lines[0] += "; held last"
        lines += facts(answer.last, now)
    if answer.note:
        lines.append(f"  note   {printable(answer.note)}")
    return "\n".join([*lines, f"  lock   {lock}"])


def facts(holder: Holder, now: float) -> list[str]:
    lines = [f"  by     {explain.by(holder)}", f"  since  {explain.since(holder, now)}"]
    return lines + ([f"  token  {holder.token}"] if holder.token is not None else [])


def as_table(answers: list[ops.Answer], now: float) -> str:
    """One line each."""
    rows = [["NAME", "STATE", "PID", "USER", "SINCE", "COMMAND"]]
    for answer in answers:
        holder = answer.holder
        owner = holder.owner if holder else None
        rows.append([
            printable(answer.name),
            answer.state,
            str(owner.pid) if owner else "-",
            printable(owner.user or str(owner.uid or "-")) if owner else "-",
            explain.since(holder, now) if holder else "-",
            printable(owner.command or "-") if owner else "-",
        ])  # fmt: skip
    return table(rows)


def as_json(answers: list[ops.Answer], now: float) -> str:
    """One object; times are seconds since 1970, UTC."""
    import json

    locks = [
        {
            "name": answer.name, "path": answer.path,
            "state": answer.state, "exists": answer.exists,
            "holder": _holder(answer.holder), "last": _holder(answer.last), "note": answer.note,
        }
        for answer in answers
    ]  # fmt: skip
    return json.dumps({"schema": SCHEMA, "at": now, "locks": locks}, indent=2)


def _holder(holder: Holder | None) -> dict[str, Any] | None:
    if holder is None:
        return None
    return as_dict(holder) | {"owner": as_dict(holder.owner) if holder.owner else None}
