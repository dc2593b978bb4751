"""`lifehold doctor`: whether a folder is safe for locks, which kind to use there, and why."""

from __future__ import annotations

from ..core import explain
from ..core.mask import printable
from ..core.value import as_dict
from ..local import lock_names
from ..ops import doctor as ops
from . import exits
from .options import DOCTOR, Usage, arguments
from .render import put, table

SCHEMA = "lifehold.doctor/1"
CODES = {ops.SAFE: exits.DONE, ops.UNSURE: exits.SUSPECT, ops.UNSAFE: exits.UNSAFE}


def doctor(words: list[str]) -> int:
    """The exit code of `lifehold doctor WORDS`."""
    given, (folder,) = arguments(DOCTOR, words)
    if lock_names.is_store(folder):
        raise Usage(
            f"of a store ask: lifehold store check {explain.quote(lock_names.shown(folder))}"
        )
    ops.refuse_peer(given["peer"] or "")
    report = ops.examine(folder, peer=given["peer"] or "")
    put(as_json(report) if given["json"] else in_words(report))
    return CODES[report.verdict]


def in_words(report: ops.FolderReport) -> str:
    """The verdict, each kind of lock, and what was found."""
    place = report.place.kind or "an unknown file system"
    lines = [f"'{printable(report.folder)}' is {report.verdict} for locks ({place})", ""]
    rows = [["KIND", "HERE", "WHY"]]
    rows += [[each.name, each.verdict, printable(each.why)] for each in report.kinds]
    lines += [table(rows, whole=True), ""]
    rows = [["LOOKED AT", "FOUND", "WHAT"]]
    rows += [[each.what, each.verdict, printable(each.why)] for each in report.findings]
    return "\n".join([*lines, table(rows, whole=True), "", f"next   {report.advice}"])


def as_json(report: ops.FolderReport) -> str:
    """One object."""
    import json

    return json.dumps(
        {
            "schema": SCHEMA,
            "folder": report.folder,
            "verdict": report.verdict,
            "kind": report.kind or None,
            "advice": report.advice,
            "peer": report.peer or None,
            "file_system": report.place.kind or None,
            "one_kernel": report.place.one_kernel,
            "kinds": [as_dict(each) for each in report.kinds],
            "findings": [as_dict(each) for each in report.findings],
        },
        indent=2,
    )
