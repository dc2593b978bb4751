"""What is asked and where: `[tool.lifehold.audit]` of the nearest pyproject.toml, and the options.

[tool.lifehold.audit]
select = ["LH1", "LH201"]          # codes, or the beginning of codes; "ALL"
ignore = ["LH111"]
exclude = ["vendor/*"]
per-file-ignores = { "tests/*" = ["LH106"] }
baseline = "audit-baseline.json"
shared-mounts = ["/mnt/cluster"]   # network file systems, for LH121
lock-words = ["gate"]              # words of names that speak of a lock, beside ours
lock-classes = ["app.locks.Gate"]  # classes whose acquire() locks between processes
flock-wrappers = ["app.io.grab"]   # functions that flock their first argument
wrappers = { "app.io.drop" = "os.unlink" }  # functions of yours, and what they stand for
"""

from __future__ import annotations

import fnmatch
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import source
from .catalogue import RULES
from .events import WRAPPED
from .suppress import UNUSED
from .words import NOTHING, Vocabulary

KNOWN = (
    "select",
    "extend-select",
    "ignore",
    "exclude",
    "per-file-ignores",
    "baseline",
    "shared-mounts",
    "lock-words",
    "lock-classes",
    "flock-wrappers",
    "wrappers",
)


class Unusable(Exception):
    """The audit cannot be run as asked. The text says what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`root` is the folder of the configuration: patterns are relative to it."""

    codes: frozenset[str] = field(default_factory=lambda: chosen((), (), ()))
    exclude: tuple[str, ...] = ()
    per_file: tuple[tuple[str, frozenset[str]], ...] = ()
    baseline: Path | None = None
    shared_mounts: tuple[str, ...] = ()
    vocabulary: Vocabulary = NOTHING
    root: Path = field(default_factory=Path.cwd)

    def codes_of(self, path: Path) -> frozenset[str]:
        """The rules that are asked of this file."""
        ignored: set[str] = set()
        for pattern, codes in self.per_file:
            if matches(path, pattern, self.root):
                ignored |= codes
        return self.codes - ignored if ignored else self.codes

    def excluded(self, folder: str, name: str) -> bool:
        if not self.exclude:
            return False
        return any(matches(Path(folder, name), each, self.root) for each in self.exclude)


def matches(path: Path, pattern: str, root: Path) -> bool:
    """By the path below the root, by the name, or by a folder on the way."""
    try:
        below = path.resolve().relative_to(root.resolve()).as_posix()
    except (ValueError, OSError, RuntimeError):
        below = path.as_posix()
    pattern = pattern.rstrip("/")
    if fnmatch.fnmatch(below, pattern) or fnmatch.fnmatch(path.name, pattern):
        return True
    return any(fnmatch.fnmatch(str(folder), pattern) for folder in Path(below).parents)


def codes(words: list[str] | tuple[str, ...], where: str) -> frozenset[str]:
    """Codes from codes, beginnings of codes, and ALL. Raises Unusable for what is none."""
    found: set[str] = set()
    known = [*RULES, UNUSED]
    for word in words:
        name = word.strip().upper()
        meant = {code for code in known if name == "ALL" or (name and code.startswith(name))}
        meant |= {rule.code for rule in RULES.values() if rule.slug == word.strip().lower()}
        if not meant:
            raise Unusable(
                f"{where}: there is no rule {word!r}. All rules: lifehold audit explain --all"
            )
        found |= meant
    return frozenset(found)


def chosen(
    select: tuple[str, ...], extend: tuple[str, ...], ignore: tuple[str, ...]
) -> frozenset[str]:
    """What is asked: the default rules, or the selected; more; less."""
    usual = frozenset(c for c, rule in RULES.items() if rule.default) | {UNUSED}
    asked = codes(select, "--select") if select else usual
    return (asked | codes(extend, "--extend-select")) - codes(ignore, "--ignore")


def nearest(start: Path) -> Path | None:
    """The pyproject.toml that speaks of the audit, here or above."""
    try:
        folder = start.resolve()
    except (OSError, RuntimeError):
        return None
    for each in (folder, *folder.parents):
        file = each / "pyproject.toml"
        if file.is_file() and "lifehold" in _text(file):
            return file
    return None


def _text(file: Path) -> str:
    try:
        return source.contents(str(file)).decode(errors="replace")
    except OSError:
        return ""


def loaded(
    file: Path | None,
    select: tuple[str, ...] = (),
    extend: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    per_file: tuple[str, ...] = (),
) -> Settings:
    """The settings of a file with those of the command on top. Raises Unusable."""
    table = _table(file) if file else {}
    select = select or tuple(table.get("select", ()))
    made = Settings(
        codes=chosen(
            select,
            (*table.get("extend-select", ()), *extend),
            (*table.get("ignore", ()), *ignore),
        ),
        exclude=tuple(table.get("exclude", ())),
        per_file=tuple(
            (pattern, codes(given, f"per-file-ignores of {pattern!r}"))
            for pattern, given in table.get("per-file-ignores", {}).items()
        ),
        shared_mounts=tuple(table.get("shared-mounts", ())),
        vocabulary=Vocabulary(
            frozenset(word.lower() for word in table.get("lock-words", ())),
            frozenset(table.get("lock-classes", ())),
            wrappers(table),
        ),
        root=file.parent if file else Path.cwd(),
    )
    if "baseline" in table:
        made = replace(made, baseline=made.root / table["baseline"])
    given = [_pair(each) for each in per_file]
    return replace(made, per_file=(*made.per_file, *given)) if given else made


def wrappers(table: dict[str, Any]) -> frozenset[tuple[str, str]]:
    """The functions of a project, and the calls that they stand for. Raises Unusable."""
    given = dict.fromkeys(table.get("flock-wrappers", ()), "fcntl.flock")
    given |= table.get("wrappers", {})
    for name, call in given.items():
        if call not in WRAPPED:
            known = ", ".join(sorted(WRAPPED))
            raise Unusable(f"wrappers: {name!r} cannot stand for {call!r}, but for {known}")
    return frozenset(given.items())


def _pair(text: str) -> tuple[str, frozenset[str]]:
    pattern, colon, given = text.partition(":")
    if not (pattern and colon and given):
        raise Unusable(f"--per-file-ignores is PATTERN:CODE[,CODE], not {text!r}")
    return pattern, codes(given.split(","), "--per-file-ignores")


def _table(file: Path) -> dict[str, Any]:
    try:
        text = source.contents(str(file)).decode()
        data = tomllib.loads(text.replace("\r\n", "\n"))
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unusable(f"{file} is no TOML: {error}") from None
    tool = data.get("tool", {})
    lifehold = tool.get("lifehold", {}) if isinstance(tool, dict) else {}
    table = lifehold.get("audit", {}) if isinstance(lifehold, dict) else {}
    if not isinstance(table, dict):
        raise Unusable(f"{file}: [tool.lifehold.audit] is a table")
    for name, value in table.items():
        _checked(file, name, value)
    return table


def _checked(file: Path, name: str, value: object) -> None:
    if name not in KNOWN:
        known = ", ".join(KNOWN)
        raise Unusable(f"{file}: [tool.lifehold.audit] knows no {name!r}, but {known}")
    if name == "baseline":
        good, what = isinstance(value, str), "a path"
    elif name == "per-file-ignores":
        good = isinstance(value, dict) and all(_words(each) for each in value.values())
        what = "a table of lists of codes"
    elif name == "wrappers":
        good = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
        what = "a table of names and the calls that they stand for"
    else:
        good, what = _words(value), "a list of words"
    if not good:
        raise Unusable(f"{file}: {name!r} of [tool.lifehold.audit] is {what}")


def _words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
