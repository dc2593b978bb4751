"""`lifehold store migrate|check|prune URL`: the operator's side of a store."""

from __future__ import annotations

from ..core.errors import LifeholdError
from ..core.mask import masked_urls, printable
from ..core.nearest import nearest
from ..core.value import as_dict
from ..local import lock_names
from ..ops import stored
from . import exits
from .options import STORE_COMMAND, Usage, arguments
from .render import put, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..store.check_report import Checked, Migrated

ACTS = ("migrate", "check", "prune")
MIGRATED, CHECKED = "lifehold.store-migrate/1", "lifehold.store-check/1"
PRUNED = "lifehold.store-prune/1"
DEFAULT = "postgresql://"  # whose SQL is shown when no URL is given


def store(words: list[str]) -> int:
    """The exit code of `lifehold store WORDS`."""
    given, rest = arguments(STORE_COMMAND, words)
    act, url = rest[0], rest[1] if len(rest) > 1 else ""
    if act not in ACTS:
        near = nearest(act, ACTS)
        meant = f"; did you mean '{near}'?" if near else ""
        raise Usage(
            f"`lifehold store` takes migrate, check or prune, not {printable(act)!r}{meant}"
        )
    if not url and not given["sql"]:
        example = f"lifehold store {act} sqlite:////PATH.db"
        raise Usage(f"URL is missing; for example:  {example}")
    if act != "migrate" and (given["sql"] or given["grant"]):
        raise Usage("--sql and --grant are for migrate")
    if (act == "prune") != (given["older_than"] is not None):
        raise Usage("prune takes --older-than TIME, for example 30d, and nothing else does")
    if act == "prune":
        return _prune(url, given)
    if act == "check":
        return _check(url, given)
    if given["sql"]:
        if given["json"]:
            raise Usage("--sql and --json are two forms of the answer: choose one")
        put(stored.script(url or DEFAULT, given["grant"] or ""))
        return exits.DONE
    return _migrate(url, given)


def _migrate(url: str, given: dict[str, Any]) -> int:
    try:
        done = stored.migrate(url, given["grant"] or "")
    except LifeholdError as error:
        if given["json"]:
            _put_error(MIGRATED, url, error, {"before": None, "after": None})
        raise
    put(_as_json(MIGRATED, as_dict(done)) if given["json"] else _told(done, given["grant"] or ""))
    return exits.DONE


def _told(done: Migrated, role: str) -> str:
    was = f"were of version {done.before}" if done.before else "were not there"
    now = "and are so still" if done.before == done.after else f"and are now of {done.after}"
    if not done.before:
        now = f"and are there now, of version {done.after}"
    lines = [f"{done.url}: the tables {was}, {now}"]
    if role:
        lines.append(f"the role '{printable(role)}' has all that is needed to work with them")
    return "\n".join(lines)


def _check(url: str, given: dict[str, Any]) -> int:
    try:
        found = stored.check(url)
    except LifeholdError as error:
        if given["json"]:
            nothing: dict[str, Any] = {"version": None, "newest": None, "findings": []}
            _put_error(CHECKED, url, error, {"ready": False, **nothing, "sentences": []})
        raise
    if given["json"]:
        findings = [as_dict(each) for each in found.findings]
        facts = {**as_dict(found), "findings": findings, "ready": found.ready}
        put(_as_json(CHECKED, facts))
    else:
        put(_in_words(found))
    return exits.DONE if found.ready else exits.NOT_READY


def _prune(url: str, given: dict[str, Any]) -> int:
    try:
        shown, gone = stored.prune(url, given["older_than"])
    except LifeholdError as error:
        if given["json"]:
            _put_error(PRUNED, url, error, {"forgotten": None})
        raise
    told = f"{shown}: {gone} name{'' if gone == 1 else 's'} forgotten"
    put(_as_json(PRUNED, {"url": shown, "forgotten": gone}) if given["json"] else told)
    return exits.DONE


def _put_error(schema: str, url: str, error: LifeholdError, facts: dict[str, Any]) -> None:
    """The answer of a store that gave none. stderr and the exit code tell as without --json."""
    told = {"url": printable(lock_names.shown(url)), **facts, "error": masked_urls(error.text)}
    put(_as_json(schema, told))


def _in_words(found: Checked) -> str:
    """What was looked at, and what these leases stand on."""
    verdict = "leases can be kept there" if found.ready else "leases cannot be kept there as it is"
    rows = [["LOOKED AT", "FOUND", "WHAT"]]
    rows += [[each.what, each.verdict, printable(each.why)] for each in found.findings]
    lines = [f"{found.url}: {verdict}", "", table(rows, whole=True)]
    if found.sentences:
        said = [["-", printable(each)] for each in found.sentences]
        lines += ["", table(said, whole=True, headed=False)]
    return "\n".join(lines)


def _as_json(schema: str, facts: dict[str, Any]) -> str:
    import json

    return json.dumps({"schema": schema, **facts}, indent=2)
