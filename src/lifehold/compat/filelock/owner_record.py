"""The record of marker locks and leases: `key=value` lines under "filelock/2".

Rule: a key that is not known is read over, and a mode that is not known is a contract of a later
release, which nobody here may break. A record without any mode says nothing and is no record.
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

OwnerMode = Literal["lease", "exclusive", "unknown"]
HEAD = "filelock/2"
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?", re.ASCII)
WITNESS = "witness=flock\n"  # ours: the holder locks the file for as long as it lives


class OwnerRecord(NamedTuple):
    """Who a file names: `start` of its process, `token` and `lease_duration` of a lease."""

    pid: int
    hostname: str
    mode: OwnerMode
    token: str | None = None
    lease_duration: float | None = None
    start: int | None = None


def parse(content: bytes | None) -> OwnerRecord | None:
    """The record; None for what is none, or is of the older form."""
    if not content or not content.endswith(b"\n"):
        return None
    try:
        lines = content.decode().strip().splitlines()
    except UnicodeDecodeError:
        return None
    if not lines or lines[0] != HEAD:
        return None
    keys: dict[str, str] = {}
    for line in lines[1:]:
        key, equals, told = line.partition("=")
        if not equals:
            return None
        keys[key] = told
    return _built(keys)


def _built(keys: dict[str, str]) -> OwnerRecord | None:
    pid, start, duration = keys.get("pid", ""), keys.get("start"), keys.get("duration")
    if "mode" not in keys or not keys.get("host") or not whole(pid):
        return None
    if not 0 < int(pid) < 1 << 31 or not (start is None or whole(start)):
        return None
    if duration is not None and not NUMBER.fullmatch(duration):
        return None
    mode: OwnerMode = "unknown"
    if keys["mode"] == "exclusive":
        mode = "exclusive"
    seconds = None if duration is None else float(duration)
    if keys["mode"] == "lease":
        mode = "lease"
        if not keys.get("token") or seconds is None or not 0 < seconds < math.inf:
            return None
    began = None if start is None else int(start)
    return OwnerRecord(int(pid), keys["host"], mode, keys.get("token"), seconds, began)


def whole(text: str) -> bool:
    """Whether it is a number of a file; one of thousands of digits is none."""
    return text.isascii() and text.isdigit() and len(text) < 80


def spelled(record: OwnerRecord, witness: bool) -> bytes:
    """The bytes of a record."""
    lines = [HEAD, f"pid={record.pid}", f"host={record.hostname}", f"mode={record.mode}"]
    if record.token is not None:
        lines.append(f"token={record.token}")
    if record.lease_duration is not None:
        lines.append(f"duration={record.lease_duration!r}")
    if record.start is not None:
        lines.append(f"start={record.start}")
    return ("".join(f"{line}\n" for line in lines) + (WITNESS if witness else "")).encode()
