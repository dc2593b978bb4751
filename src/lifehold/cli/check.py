"""`lifehold check` and `lifehold touch`: whether the lock around a script is still its own."""

from __future__ import annotations

from ..core.mask import printable
from ..local import lock_names
from ..lock import absolute
from ..ops import held
from ..runtime import clock
from . import exits
from .options import CHECK, TOUCH, Usage, arguments
from .render import put, say

SCHEMA = "lifehold.check/1"


def check(words: list[str]) -> int:
    """The exit code of `lifehold check WORDS`."""
    given, names = arguments(CHECK, words)
    path = _path(names)
    if given["token"] is None:
        answer = held.of_environment(_lock(path))
    elif path is None:
        raise Usage(f"--token needs the NAME whose holder should have it\nusage: {CHECK.usage}")
    else:
        answer = held.of_token(path, given["token"])
    return _told(answer, given["json"], exits.FREE)


def touch(words: list[str]) -> int:
    """The exit code of `lifehold touch WORDS`. A kernel lock has nothing to prolong."""
    given, names = arguments(TOUCH, words)
    path = _path(names)
    return _told(held.of_environment(_lock(path)), given["json"], exits.LOST)


def _lock(path: str | None) -> str | None:
    """As the `run` around us calls it."""
    if path is None or not lock_names.is_store(path):
        return path
    from ..ops import stored

    return stored.canonical(path)


def _path(names: list[str]) -> str | None:
    if not names:
        return None
    path = lock_names.address(names[0]).path
    return path if lock_names.is_store(path) else absolute(path)


def _told(answer: held.HeldAnswer, as_json: bool, otherwise: int) -> int:
    if as_json:
        import json

        holder = answer.holder
        put(
            json.dumps(
                {
                    "schema": SCHEMA,
                    "at": clock.utc_now(),
                    "valid": answer.valid,
                    "path": answer.path,
                    "reason": answer.reason,
                    "token": holder.token if holder else None,
                    "nonce": holder.nonce if holder else None,
                    "renewed": False,
                },
                indent=2,
            )
        )
    elif not answer.valid:
        say(printable(answer.reason))
    return exits.DONE if answer.valid else otherwise
