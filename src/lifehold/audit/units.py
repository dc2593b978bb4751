"""Shell in other files: crontabs, systemd units, Dockerfiles, compose files; and containers' own.

`scripts(kind, text)` are the commands of such a file, each a script of its own on its own lines.
A container that starts again finds its old files, and its process numbers begin anew: a pid file in
it then names the new process itself. Containers that share a folder do not share those numbers.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from . import words
from .finding import Span
from .rule import Hit
from .shell import Script

if TYPE_CHECKING:
    from collections.abc import Iterator

WHEN = r"(?:[\d*][\d*,/\-]*|[A-Za-z]{3}(?:-[A-Za-z]{3})?)(?:\s+[\w*][\w*,/\-]*){4}"
CRON = re.compile(rf"^\s*(@\w+|{WHEN})\s+(\S.*)$")
WORD = re.compile(r"^\S+\s+")
# A row that says who runs it, in a file whose name does not say whether rows do.
ITS_USER = re.compile(
    r"^(root|www-data|nobody)\s+(?=[\w./\[(])|^[a-z_][\w-]*\s+(?=(flock|lockf|lockfile|lifehold)\s)"
)
EXEC = re.compile(r"^\s*(Exec\w+)\s*=\s*[-@:+!]*(.*)$")
SHELL_C = re.compile(r"(?:^|/)(?:ba|da|k|z)?sh\s+-\w*c\s+(.*)$", re.DOTALL)
INSTRUCTION = re.compile(r"^\s*(CMD|ENTRYPOINT|HEALTHCHECK)\s+(.*)$", re.IGNORECASE | re.DOTALL)
PID_OPTION = re.compile(
    r"--pid-?(?:file)?(?:[= ]|\", ?\")([^\s\"',=]+)|(?:^|[\s\"'])-P[\s\"',]+([^\s\"',]+\.pid)"
)
RAILS = re.compile(r"\brails[\"',\s]+s(erver)?\b")
HARMLESS = re.compile(r"^(/dev/null|/dev/shm/|/proc/|\$\(mktemp)")
NAMED_SO = re.compile(r"(^|[-_/.])(pids?|pidfiles?|locks?|lockfiles?)$", re.IGNORECASE)
SHARED = re.compile(
    r"(^|/)(pids?|locks?|lockfiles?)(/|$)|^/(var/)?run/?$|^/var/lock/?$", re.IGNORECASE
)


class UnitRow(NamedTuple):
    """What a finding stands at, by the names of ast."""

    lineno: int
    col_offset: int
    end_col_offset: int
    title: str

    @property
    def end_lineno(self) -> int:
        return self.lineno


class Unit:
    """A file that is no script itself. `kind`: cron, systemd, docker, compose."""

    def __init__(self, path: str, kind: str, text: str) -> None:
        self.path, self.kind, self.text = path, kind, text
        self.rows = text.split("\n")

    def row(self, number: int, title: str) -> UnitRow:
        text = self.rows[number - 1] if number <= len(self.rows) else ""
        return UnitRow(number, len(text) - len(text.lstrip()), len(text.rstrip()), title)


def scripts(unit: Unit) -> Iterator[Script]:
    """The commands in a unit, each on the line where it stands."""
    for number, text in commands(unit):
        yield Script(unit.path, "\n" * (number - 1) + text)


def names_its_user(path: str) -> bool:
    """Does each row of this table of cron say first who runs it? Those of the system do."""
    return "cron.d" in path.split("/") or path.endswith("etc/crontab")


def commands(unit: Unit) -> Iterator[tuple[int, str]]:
    if unit.kind == "cron":
        for number, row in enumerate(unit.rows, 1):
            found = None if row.lstrip().startswith("#") else CRON.match(row)
            if found:
                text = found[2]
                user = WORD if names_its_user(unit.path) else ITS_USER
                text = user.sub(lambda m: " " * len(m[0]), text)
                yield number, " " * found.start(2) + text.replace("\\%", "%")
    elif unit.kind == "systemd":
        for number, row in logical(unit.rows):
            found = EXEC.match(row)
            inner = SHELL_C.search(found[2]) if found else None
            if inner:
                yield number, unquoted(inner[1]).replace("$$", "$")
    elif unit.kind == "docker":
        for number, row in logical(unit.rows):
            found = INSTRUCTION.match(row)
            if found:
                yield number, docker_command(found[2])


def logical(rows: list[str]) -> Iterator[tuple[int, str]]:
    """Rows with those that they go on in; the number is that of the first."""
    first, text = 0, ""
    for number, row in enumerate(rows, 1):
        if not text:
            first = number
        if row.rstrip().endswith("\\"):
            text += row.rstrip()[:-1] + "\\\n"
            continue
        yield first, text + row
        text = ""


def unquoted(text: str) -> str:
    text = text.strip()
    return (
        text[1:-1] if text[:1] == text[-1:] and text[:1] in ("'", '"') and len(text) > 1 else text
    )


def docker_command(text: str) -> str:
    """The shell of `CMD ["sh", "-c", "..."]`, or of `CMD ...`."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        return ""
    if len(given) > 2 and given[0].rpartition("/")[2] in ("sh", "bash", "dash") and "c" in given[1]:
        return str(given[2])
    return " ".join(given)


# --- containers ---------------------------------------------------------------------------------


def pid_survives(unit: Unit | Script) -> Iterator[Hit]:
    """LH309."""
    if isinstance(unit, Script):
        yield from in_entrypoint(unit)
        return
    starts = list(commands(unit)) if unit.kind == "docker" else list(compose_commands(unit))
    for number, text in starts:
        path = pid_path(text)
        if path and not re.search(r"\brm\b[^;&|]*(\.pid|pids)", text):
            yield Hit(unit.row(number, "the container"), unit.row(number, ""), survives(path))


def survives(path: str) -> str:
    return (
        f"`{path}` is still there when this container starts again after a crash, and process"
        " numbers begin anew: the program meets its own number and refuses to start"
    )


def pid_path(text: str) -> str:
    """The pid file that a program is told to write; "" for none, or one that does not stay."""
    found = PID_OPTION.search(text)
    path = (found[1] or found[2]) if found else ""
    if found:
        return "" if HARMLESS.match(path) or not words.speaks_of_pid(path) else path
    rails = RAILS.search(text)
    return "tmp/pids/server.pid" if rails and "--pid" not in text and " -P" not in text else ""


def in_entrypoint(script: Script) -> Iterator[Hit]:
    if "entrypoint" not in script.path.rpartition("/")[2].lower():
        return
    for command in script.commands:
        path = pid_path(" ".join(command.words))
        gone = any(
            c.name == "rm"
            and any(
                script.key(path) == script.key(o) or ".pid" in o or "pids" in o for o in c.operands
            )
            for c in script.commands
            if c.line <= command.line
        )
        if path and not gone:
            yield Hit(command, command, survives(path))


def services(unit: Unit) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Each service of a compose file with its rows."""
    inside, indent, name = False, -1, ""
    rows: list[tuple[int, str]] = []
    for number, row in enumerate(unit.rows, 1):
        plain = row.split(" #")[0].rstrip()
        if not plain.strip() or plain.lstrip().startswith("#"):
            continue
        depth = len(plain) - len(plain.lstrip())
        if depth == 0:
            inside = plain.startswith("services:")
            indent = -1
        elif inside and (indent < 0 or depth == indent) and plain.endswith(":"):
            if name:
                yield name, rows
            indent, name, rows = depth, plain.strip().rstrip(":"), []
            continue
        if inside and name:
            rows.append((number, plain))
    if name:
        yield name, rows


def compose_commands(unit: Unit) -> Iterator[tuple[int, str]]:
    for _name, rows in services(unit) if unit.kind == "compose" else ():
        for number, row in rows:
            found = re.match(r"\s*(command|entrypoint):\s*(.+)$", row)
            if found:
                yield number, unquoted(found[2])


def shared_folder(unit: Unit | Script) -> Iterator[Hit]:
    """LH310."""
    if isinstance(unit, Script) or unit.kind != "compose":
        return
    seen: dict[str, tuple[str, int]] = {}
    for name, rows in services(unit):
        many = any(re.match(r"\s*(replicas|scale):\s*([2-9]|\d\d)", row) for _n, row in rows)
        for number, source, target in mounts(rows):
            shared = SHARED.search(target) or NAMED_SO.search(source)
            if not shared or target.endswith(".sock"):
                continue
            first = seen.setdefault(source, (name, number))
            if first[0] == name and not many:
                continue
            spans = (Span(first[1], f"and by {first[0]}"),) if first[0] != name else ()
            yield Hit(
                unit.row(number, name),
                unit.row(number, name),
                f"`{target}` is shared by several containers: each has process numbers of its own,"
                " so a pid file or lock of one looks stale, or held for ever, to another",
                spans,
            )


def mounts(rows: list[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """The volumes of a service: `- source:target[:mode]`, or source and target on their rows."""
    source, inside, depth = "", False, 0
    for number, row in rows:
        indent = len(row) - len(row.lstrip())
        if re.match(r"\s*volumes:\s*$", row):
            inside, depth = True, indent
            continue
        if inside and (indent < depth or (indent == depth and not row.lstrip().startswith("-"))):
            inside = False
        if not inside:
            continue
        text = row.strip().removeprefix("- ").strip().strip("\"'")
        key, _, value = text.partition(":")
        if key in ("type", "source", "target", "read_only"):
            source = value.strip() if key == "source" else source
            if key == "target" and source:
                yield number, source, value.strip()
        elif value and not value.startswith(" "):
            yield number, key, value.partition(":")[0]


# --- which files --------------------------------------------------------------------------------

NAMES = (
    (re.compile(r"\.(sh|bash|ksh|dash)$|\.(sh|bash)\.(in|j2)$"), "shell"),
    (re.compile(r"^(Docker|Container)file(\..+)?$|\.[Dd]ockerfile$"), "docker"),
    (re.compile(r"^(docker-)?compose[\w.\-]*\.ya?ml$"), "compose"),
    (re.compile(r"\.service$"), "systemd"),
    (re.compile(r"^crontab(\.\w+)?$|\.cron$|crontab$"), "cron"),
)
SHEBANG = re.compile(rb"#!\s*\S*(?:/|env\s+)(?:ba|da|k|a)?sh\b")


def kind_of(path: str, head: bytes = b"") -> str:
    """What a file is by its name, or by its first line; "" for what is not looked at here."""
    name = path.rpartition("/")[2]
    for pattern, kind in NAMES:
        if pattern.search(name):
            return kind
    if "cron.d" in path.split("/"):
        return "cron"
    return "shell" if SHEBANG.match(head) else ""
