"""`lifehold log`: what became of the runs of a lock."""

from __future__ import annotations

import os

from ..core import explain
from ..core.errors import SystemRefused
from ..core.mask import printable
from ..core.nearest import did_you_mean
from ..core.value import as_dict
from ..local import lock_names
from ..lock import absolute
from ..ops import history
from ..ops.who import FolderMissing
from . import exits, target
from .locks import doubles_text
from .options import LOG, Usage, arguments
from .render import put, say, table

SCHEMA = "lifehold.log/1"


def log(words: list[str]) -> int:
    """The exit code of `lifehold log WORDS`."""
    given, names = arguments(LOG, words)
    event = given["event"]
    if event is not None and event not in history.EVENTS:
        end = did_you_mean(event, history.EVENTS)
        raise Usage(f"--event is one of {', '.join(history.EVENTS)}, not {event!r}{end}")
    name = lock_names.shown(names[0]) if names else ""
    path = _path(names[0]) if names else lock_names.candidates()[0]
    try:
        if names:
            entries = history.merged(history.read(path), _cleared(path))
        else:
            entries = history.logged()
    except OSError as error:
        raise SystemRefused(
            f"the history of '{printable(name or path)}' cannot be read: {error.strerror}",
            errno=error.errno,
            filename=path,
        ) from error
    entries = [entry for entry in entries if event in (None, entry.event)]
    if given["last"] is not None:
        entries = entries[-given["last"] :]
    if given["json"]:
        import json

        found = [as_dict(entry) for entry in entries]
        put(json.dumps({"schema": SCHEMA, "path": path, "entries": found}, indent=2))
    elif entries:
        rows = [["WHEN", "EVENT", "CODE", "WAITED", "HELD", "PID", "USER", "WHAT"]]
        put(table(rows + [row(entry) for entry in entries], whole=True))
    elif not names:
        say("no lock was cleared here")
    else:
        say(f"no run of '{printable(name)}' has left a line" + (f" of {event}" if event else ""))
        target.tell_like(names[0], path)
    return exits.DONE


def _path(name: str) -> str:
    address = lock_names.address(name)
    if address.doubles:
        say(doubles_text(name, address))
    if lock_names.is_store(address.path):
        from ..ops import stored

        site, key = stored.parted(address.path)
        return str(site.address(key))
    path = absolute(address.path)
    if "/" in name and not os.path.isdir(os.path.dirname(path)):
        raise FolderMissing(f"'{printable(os.path.dirname(path))}' is not a folder", name=name)
    return path


def _cleared(path: str) -> list[history.HistoryEntry]:
    """What `clear` did to this lock."""
    return [entry for entry in history.logged() if entry.name == printable(path)]


def row(entry: history.HistoryEntry) -> list[str]:
    """One line for people. What was in the way matters more than what could not run."""
    what = entry.command
    if entry.event in (history.CLEAR, history.KEPT):
        what = f"{entry.name}, held by {entry.holder or 'nobody it named'}: {entry.reason}"
    elif entry.event == history.TAKEOVER:
        what = f"{entry.command}: taken over from {entry.holder}: {entry.reason}"
    elif entry.holder:
        what = f"{entry.command}: held by {entry.holder}"
    elif entry.reason:
        what = f"{entry.command}: {entry.reason}"
    return [
        explain.utc(entry.at),
        printable(entry.event),
        "-" if entry.code is None else str(entry.code),
        explain.span(entry.waited) if entry.waited else "-",
        "-" if entry.held is None else explain.span(max(0.0, entry.held)),
        str(entry.pid or "-"),
        printable(entry.user or "-"),
        printable(what),
    ]
