"""What `watch` is told to do: a TOML file, read as a whole or refused.

Promise: an unknown key, a wrong type or a length of time that is none is an error that names the
key and says what it may be; half a configuration is never in force.
"""

from __future__ import annotations

import os

from ..core.errors import InvalidArgument
from ..core.mask import printable
from ..core.value import value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DAY = 86400.0
ALERT, CLEAR, IGNORE = "alert", "clear", "ignore"


@value
class Config:
    """`folders` are looked through with all below them; lengths of time in seconds, 0 for never.

    `stale`: ALERT, CLEAR or IGNORE; `suspect`: ALERT or IGNORE; `held`: alert when a lock is held
    for longer; `skips`: when the last so many runs of a lock were skipped or timed out; `silent`:
    when a lock with a history ran last so long ago; `again`: tell what is still wrong again after
    so long.
    """

    folders: tuple[str, ...]
    every: float = 60.0
    stale: str = ALERT
    suspect: str = IGNORE
    held: float = 0.0
    skips: int = 3
    silent: float = 0.0
    again: float = DAY
    log: str = ""
    command: tuple[str, ...] = ()
    webhook: str = ""
    listen: str = ""
    textfile: str = ""


def read(path: str) -> Config:
    """The configuration in a file. Raises InvalidArgument, OSError."""
    import tomllib

    with open(path, "rb") as file:
        try:
            given = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"'{printable(path)}' is no TOML: {error}") from error
    try:
        return of(given)
    except InvalidArgument as error:
        raise InvalidArgument(f"'{printable(path)}': {error.text}") from None


def of(given: dict[str, Any]) -> Config:
    """The same from its tables as a dict."""
    wrong = sorted(set(given) - set(READERS))
    if wrong:
        known = ", ".join(READERS)
        raise InvalidArgument(f"there is no key {printable(wrong[0])!r}, but {known}")
    if "folders" not in given:
        raise InvalidArgument('folders is needed, for example folders = ["/run/lock"]')
    return Config(**{key: READERS[key](key, told) for key, told in given.items()})


def _refused(key: str, what: str, told: object) -> InvalidArgument:
    return InvalidArgument(f"{key} is {what}, not {printable(repr(told))}")


def _time(key: str, told: Any) -> float:
    if isinstance(told, str) and told[-1:] in UNITS and told[:-1].replace(".", "", 1).isdigit():
        return float(told[:-1]) * UNITS[told[-1]]
    if isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < 1e9:
        return float(told)
    raise _refused(key, "a length of time: seconds or '30s', '5m', '1h', '2d'", told)


def _interval(key: str, told: Any) -> float:
    found = _time(key, told)
    if found < 1:
        raise _refused(key, "a second or longer", told)
    return found


def _count(key: str, told: Any) -> int:
    if type(told) is int and 0 <= told < 10_000:
        return told
    raise _refused(key, "a number of runs, 0 for never", told)


def _one_of(*words: str) -> Callable[[str, Any], str]:
    def reader(key: str, told: Any) -> str:
        if told in words:
            return str(told)
        raise _refused(key, f"one of {', '.join(words)}", told)

    return reader


def _words(key: str, told: Any) -> tuple[str, ...]:
    if isinstance(told, list) and told and all(isinstance(each, str) and each for each in told):
        return tuple(told)
    raise _refused(key, "a list of texts", told)


def _folders(key: str, told: Any) -> tuple[str, ...]:
    found = _words(key, told)
    for each in found:
        if not os.path.isabs(each):
            raise _refused(key, "a list of absolute paths", each)
    return found


def _path(key: str, told: Any) -> str:
    if isinstance(told, str) and os.path.isabs(told):
        return told
    raise _refused(key, "an absolute path", told)


def _url(key: str, told: Any) -> str:
    """L11  It may be a secret as a whole, so what is wrong is said without it."""
    from urllib.parse import urlsplit

    wrong = "it must begin with http:// or https://"
    if isinstance(told, str) and told.startswith(("http://", "https://")):
        wrong = ""
        try:
            parts = urlsplit(told)
            if not parts.hostname:
                wrong = "it names no host"
            elif parts.port == 0:
                raise ValueError("0")
            elif parts.username is not None:
                wrong = "it must not carry a user; give a token in its path or query"
        except ValueError:
            wrong = "its port is no number from 1 to 65535"
        if any(not "!" <= each <= "~" for each in told):
            wrong = "it contains a blank or another character that no URL has"
    if wrong:
        raise InvalidArgument(f"{key} is an http or https URL: {wrong}")
    return str(told)


def _address(key: str, told: Any) -> str:
    host, _, port = str(told).rpartition(":")
    if isinstance(told, str) and host and port.isdigit() and int(port) < 1 << 16:
        return told
    raise _refused(key, "HOST:PORT, for example '127.0.0.1:9467'", told)


READERS: dict[str, Callable[[str, Any], Any]] = {
    "folders": _folders, "every": _interval, "stale": _one_of(ALERT, CLEAR, IGNORE),
    "suspect": _one_of(ALERT, IGNORE), "held": _time, "skips": _count, "silent": _time,
    "again": _time, "log": _path, "command": _words, "webhook": _url, "listen": _address,
    "textfile": _path,
}  # fmt: skip
