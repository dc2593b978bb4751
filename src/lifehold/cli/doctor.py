"""`lifehold doctor`: whether a folder or a Redis is safe for locks, and why."""

from __future__ import annotations

from ..core.errors import LifeholdError
from ..core.mask import masked_urls, printable
from ..core.value import as_dict
from ..local import lock_names
from ..ops import doctor as ops
from ..ops import stored
from ..store.check_report import BAD, UNPROVEN
from . import exits
from .colour import painted
from .options import DOCTOR, Usage, arguments
from .render import put, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..store.check_report import Checked

SCHEMA, OF_STORE = "lifehold.doctor/1", "lifehold.doctor-store/1"
CODES = {ops.SAFE: exits.DONE, ops.UNSURE: exits.SUSPECT, ops.UNSAFE: exits.UNSAFE}


def doctor(words: list[str]) -> int:
    """The exit code of `lifehold doctor WORDS`."""
    given, (folder,) = arguments(DOCTOR, words)
    if lock_names.is_store(folder):
        if given["peer"]:
            raise Usage("--peer is for a folder: a server answers all hosts alike")
        return _of_store(folder, as_object=given["json"])
    ops.refuse_peer(given["peer"] or "")
    report = ops.examine(folder, peer=given["peer"] or "")
    put(as_json(report) if given["json"] else in_words(report))
    return CODES[report.verdict]


def _of_store(url: str, *, as_object: bool) -> int:
    try:
        found = stored.examine(url)
    except LifeholdError as error:
        if as_object:
            nothing: dict[str, Any] = {"verdict": None, "advice": "", "findings": []}
            told = {"url": printable(lock_names.shown(url)), **nothing}
            put(_dumped({**told, "error": masked_urls(error.text)}))
        raise
    verdict = _verdict(found)
    advice = _advice(found)
    put(_as_object(found, verdict, advice) if as_object else _as_table(found, verdict, advice))
    return CODES[verdict]


def _verdict(found: Checked) -> str:
    verdicts = {each.verdict for each in found.findings}
    if BAD in verdicts:
        return ops.UNSAFE
    return ops.UNSURE if UNPROVEN in verdicts else ops.SAFE


def _advice(found: Checked) -> str:
    wrong = [each for each in found.findings if each.verdict == BAD]
    if wrong:
        return f"first {wrong[0].what}: {wrong[0].why}"
    if any(each.verdict == UNPROVEN for each in found.findings):
        return "check the fencing token where the data is: a lease can be lost here"
    return "leases can be kept there"


def _as_table(found: Checked, verdict: str, advice: str) -> str:
    rows = [["LOOKED AT", "FOUND", "WHAT"]]
    rows += [[each.what, each.verdict, printable(each.why)] for each in found.findings]
    head = f"{printable(found.url)} is {verdict} for leases"
    return "\n".join([head, "", table(rows, whole=True), "", f"next   {printable(advice)}"])


def _as_object(found: Checked, verdict: str, advice: str) -> str:
    findings = [as_dict(each) for each in found.findings]
    return _dumped({"url": found.url, "verdict": verdict, "advice": advice, "findings": findings})


def _dumped(facts: dict[str, Any]) -> str:
    import json

    return json.dumps({"schema": OF_STORE, **facts}, indent=2)


def in_words(report: ops.FolderReport) -> str:
    """The verdict, each kind of lock, and what was found."""
    place = report.place.kind or "an unknown file system"
    lines = [f"'{printable(report.folder)}' is {painted(report.verdict)} for locks ({place})"]
    lines += [
        f"  why    {each.what}: {printable(each.why)}"
        for each in report.findings
        if each.verdict == "refuted" and report.verdict == "unsafe"
    ]
    lines.append("")
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
