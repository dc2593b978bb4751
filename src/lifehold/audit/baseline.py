"""The findings that were there before: written once, and left out from then on.

Fingerprints are made of path, rule, function and the text of the line, so that lines may move.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .settings import Unusable

if TYPE_CHECKING:
    from pathlib import Path

    from .finding import Finding
    from .scan import Report

SCHEMA = "lifehold.audit-baseline/1"


def written(findings: list[Finding]) -> str:
    """The text of a baseline that holds these findings."""
    rows = [
        {"fingerprint": f.fingerprint, "code": f.code, "path": f.path, "message": f.message}
        for f in findings
    ]
    return json.dumps({"schema": SCHEMA, "findings": rows}, indent=1, ensure_ascii=False) + "\n"


def without(report: Report, file: Path) -> None:
    """Take out of the report what the baseline holds. Raises Unusable."""
    marks = read(file)
    new = [each for each in report.findings if each.fingerprint not in marks]
    report.known += len(report.findings) - len(new)
    report.findings = new


def read(file: Path) -> frozenset[str]:
    """The fingerprints in a baseline. Raises Unusable for one of another version."""
    again = "write it anew with --write-baseline"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unusable(f"the baseline {file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise Unusable(f"the baseline {file} is no JSON: {again}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise Unusable(f"the baseline {file} is of version {schema!r}, not {SCHEMA!r}: {again}")
    rows = data.get("findings")
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("fingerprint"), str) for row in rows
    ):
        raise Unusable(f"the baseline {file} is damaged: {again}")
    return frozenset(row["fingerprint"] for row in rows)
