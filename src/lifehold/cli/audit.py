"""`lifehold audit`: the mistakes in Python code by which locks go stale, are robbed, hold nothing.

Promise: 0 means that all was read and nothing was found; 1 that there are findings; 2 that it
could not be done as asked. Nothing of what is read is run; only `--fix`
writes into it, and only `--crash-test` runs what it is given.
"""

from __future__ import annotations

import os

from ..core.mask import printable
from . import colour
from .options_audit import AUDIT
from .row import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from ..audit.finding import Notice
    from ..audit.fix import Mending
    from ..audit.scan import AuditReport
    from ..audit.settings import Settings

CLEAN, FINDINGS, COULD_NOT = 0, 1, 2
PAUSE = 0.5  # seconds between two looks for changes


def audit(words: list[str]) -> int:
    """The exit code of `lifehold audit WORDS`."""
    from ..audit.settings import Unusable
    from .options import arguments
    from .render import say

    try:
        given, operands = arguments(AUDIT, words)
        paths = list(operands)
        if paths[:1] == ["explain"]:
            return _explain(paths[1:], everything=given["all"])
        if given["unsafe"] and not (given["fix"] or given["diff"]):
            raise Usage("--unsafe-fixes goes with --fix or --diff")
        if given["watch"] and (given["fix"] or given["diff"] or given["write"]):
            raise Usage("--watch only looks: it goes with no --fix, --diff or --write-baseline")
        if given["lsp"]:
            return _serve()
        if given["crash"]:
            return _crash(given["crash"])
        if given["adopt"]:
            return _adopt(given, paths or ["."])
        if given["watch"]:
            return _watch(given, paths or ["."])
        return _look(given, paths or ["."])
    except Usage as error:
        say(error.text)
    except Unusable as error:
        say(printable(str(error)))
    return COULD_NOT


def _crash(name: str) -> int:
    """Kill the lock of a factory at each of its steps. This runs code of the one who asks."""
    import tempfile

    from ..audit.settings import Unusable
    from ..testing import crash_test
    from .render import put

    try:
        factory = crash_test.loaded(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  the module is somebody else's
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        known = isinstance(error, ValueError | ImportError | AttributeError)
        raise Unusable(f"--crash-test: {error if known else told}") from None
    with tempfile.TemporaryDirectory() as folder:
        report = crash_test.crash_test(factory, folder)
    put(report.text())
    return CLEAN if report.ok else FINDINGS


def _serve() -> int:
    """Serve an editor until it goes."""
    from importlib.util import find_spec

    from .. import __version__
    from ..audit.settings import Unusable

    if find_spec("pygls") is None:
        raise Unusable(
            "the server is made of pygls, which is missing: pip install 'lifehold[audit]'"
        )
    from ..audit import server

    server.served(__version__).start_io()
    return CLEAN


def _explain(names: list[str], *, everything: bool) -> int:
    from ..audit import report, settings
    from ..audit.catalogue import RULES
    from .render import put

    if everything or not names:
        put("\n".join(report.row(rule) for rule in RULES.values()))
        return CLEAN
    codes = sorted(settings.codes(names, "explain") & RULES.keys())
    put("\n\n".join(report.explained(RULES[code]) for code in codes))
    return CLEAN


def _look(given: dict[str, Any], paths: list[str]) -> int:
    from pathlib import Path

    from .. import __version__
    from ..audit import report, scan
    from .render import progress, put

    made = _settings(given, paths)
    cache = None if given["no_cache"] else _cache()
    changed = report.checkouts(paths, given["since"]) if given["since"] else {}
    with progress() as tell:
        found = scan.audit(paths, made, jobs=given["jobs"], cache=cache, tell=tell)
    if given["write"]:
        _write(Path(given["write"]), report.written(found.findings))
        put(f"{len(found.findings)} findings are known from now on: --baseline {given['write']}")
        _tell(found.notices)
        return COULD_NOT if found.unread else CLEAN
    known = Path(given["baseline"]) if given["baseline"] else made.baseline

    def narrowed(found: AuditReport) -> AuditReport:
        if known is not None:
            report.without(found, known)
        if given["since"]:
            report.changed_since(found, given["since"], changed)
        return found

    found = narrowed(found)
    if given["diff"]:
        return _diff(found, made, unsafe=given["unsafe"])
    if given["fix"] and _fixed(found, made, unsafe=given["unsafe"]):
        found = narrowed(scan.audit(paths, made, jobs=given["jobs"], cache=cache))
    if given["format"] == "sarif":
        from ..audit import fix

        fix.offered(found, made)
    _tell(found.notices)
    if given["statistics"]:
        put(report.statistics(found))
    elif given["format"] == "full":
        put(report.full(found, __version__, colour=colour.wanted()))
    else:
        put(report.FORMATS[given["format"]](found, __version__))
    if found.findings:
        return FINDINGS
    return COULD_NOT if found.unread else CLEAN


def _adopt(given: dict[str, Any], paths: list[str]) -> int:
    """Each lock with the line of ours; nothing is judged, and nothing is written."""
    from ..audit import adopt
    from .render import put

    found = adopt.adopted(paths, _settings(given, paths))
    _tell(found.notices)
    put(adopt.told(found))
    return COULD_NOT if any(each.means_unread for each in found.notices) else CLEAN


def _watch(given: dict[str, Any], paths: list[str]) -> int:
    """Look, and look again whenever a file comes, goes or changes, until somebody interrupts."""
    from ..audit import scan
    from ..runtime import clock
    from .render import put, say

    made = _settings(given, paths)

    def picture() -> list[tuple[str, int, int, int]]:
        return [(path, *_stamp(path)) for path, _size in scan.found_files(paths, made, [])]

    while True:
        shown = picture()
        _look(given, paths)
        say("looking again when a file changes; Ctrl-C ends it")
        begun = clock.now()
        while (now := picture()) == shown:
            clock.pause(max(PAUSE, 4 * (clock.now() - begun)))  # a fifth of a processor at most
            begun = clock.now()
        put("\n".join(["", *(f"changed: {name}" for name in _differing(shown, now)[:5])]))


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        facts = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns)


def _differing(old: list[tuple[str, int, int, int]], new: list[tuple[str, int, int, int]]) -> Any:
    return sorted({printable(each[0]) for each in set(old) ^ set(new)})


def _diff(found: AuditReport, made: Settings, *, unsafe: bool) -> int:
    """What `--fix` would write, and whether that is anything."""
    from ..audit import fix
    from .render import put

    done = fix.mended(found, made, unsafe=unsafe)
    if done.count:
        put(fix.diff(done))
    _tell(found.notices)
    _tell_mended(done, "can be mended")
    if done.count:
        return FINDINGS
    return COULD_NOT if found.unread else CLEAN


def _fixed(found: AuditReport, made: Settings, *, unsafe: bool) -> bool:
    """Mend the files; whether any was written."""
    from ..audit import fix

    done = fix.mended(found, made, unsafe=unsafe)
    fix.write(done)
    _tell_mended(done, "mended")
    return done.count > 0


def _tell_mended(done: Mending, what: str) -> None:
    from .render import say

    for notice in done.notices:
        say(f"{printable(notice.path)}: {printable(notice.text)}")
    count, files = done.count, len([each for each in done.files if each.codes])
    more = f"; {done.left} more with --unsafe-fixes" if done.left else ""
    plural = "s" * (count != 1), "s" * (files != 1)
    say(f"{count} finding{plural[0]} {what} in {files} file{plural[1]}{more}.")


def _settings(given: dict[str, Any], paths: list[str]) -> Settings:
    from pathlib import Path

    from ..audit import settings

    file: Path | None = Path(given["config"]) if given["config"] else None
    if file is None:
        start = Path(paths[0])
        file = settings.nearest(start if start.is_dir() else start.parent)

    def cut(name: str) -> tuple[str, ...]:
        return tuple(code for text in given[name] or () for code in text.split(",") if code)

    return settings.loaded(
        file, cut("select"), cut("extend"), cut("ignore"), tuple(given["per_file"] or ())
    )


def _cache() -> Path | None:
    """Where results are remembered. Root remembers nothing in a folder that others can change."""
    from pathlib import Path

    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(home, "lifehold", "audit")
    if getattr(os, "geteuid", lambda: 1)() == 0:
        steps = [each for each in (cache, *cache.parents) if os.path.lexists(each)]
        if any(os.lstat(each).st_uid for each in steps):
            return None
    return cache if os.path.isabs(home) else None


def _write(file: Path, text: str) -> None:
    """A baseline, in one step, and as root through no link of somebody else.

    A file that is no baseline was named by mistake: it stays as it is.
    """
    from ..audit import fix, report, source
    from ..audit.settings import Unusable

    old: bytes | None = None
    try:
        old = source.contents(str(file))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Unusable(f"{file} cannot be written: {error.strerror}") from None
    if old is not None and not report.is_baseline(old):
        raise Unusable(f"{file} is no baseline: name another file, or remove it")
    if why := fix.put(file, old, text.encode()):
        raise Unusable(f"{file} cannot be written: {why}")


def _tell(notices: list[Notice]) -> None:
    """The notices, on stderr: what was not read, and why."""
    from .render import say

    for notice in notices[:50]:
        where = f"{notice.path}:{notice.line}" if notice.line else notice.path
        say(f"{printable(where)}: {printable(notice.text)}")
    if len(notices) > 50:
        say(f"and {len(notices) - 50} more files that were not read, or not as they are")
