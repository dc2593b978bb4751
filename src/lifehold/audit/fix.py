"""`--fix` and `--diff`: what is found and has a cure is mended in its file, one place at a time.

Promise: a cure that does not make its own finding vanish, or that makes another appear, is taken
back; so a second run finds nothing more to mend. Every other byte stays, each line with its ending.
A file that changes while it is mended is left as it is: it is compared once more just before the
new one is put into its place, and what is written in the microseconds between is lost.
Needs libcst, which the extra `lifehold[audit]` brings; it is asked only for files that get a cure.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import errno
import importlib.util
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import scan, source, suppress
from .catalogue import RULES
from .finding import Edit, Notice
from .forms import judged
from .model import Module
from .settings import Unusable

if TYPE_CHECKING:
    from .finding import Finding
    from .scan import AuditReport
    from .settings import Settings

ROUNDS = 200  # places of one file
WARY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
ACL = "system.posix_acl_access"
MAKE = os.O_CREAT | os.O_EXCL
LINKS = 40  # in one path, as in the kernel


@dataclass(slots=True)
class Mended:
    """One file with its cures. `codes`: what was mended, in order; `left`: needs --unsafe-fixes."""

    path: str
    before: bytes
    after: bytes
    codes: list[str] = field(default_factory=list)
    left: int = 0


@dataclass(slots=True)
class Mending:
    """What was done to all files."""

    files: list[Mended] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(len(each.codes) for each in self.files)

    @property
    def left(self) -> int:
        return sum(each.left for each in self.files)


def ready() -> None:
    """Raises Unusable, with what to install, where libcst is missing."""
    if importlib.util.find_spec("libcst") is None:
        raise Unusable(
            "fixes are written by libcst, which is missing: pip install 'lifehold[audit]'"
        )


def mended(report: AuditReport, settings: Settings, *, unsafe: bool) -> Mending:
    """Every file of the report with its cures; nothing is written."""
    ready()
    done = Mending()
    for path in dict.fromkeys(each.path for each in report.findings if has_cure(each.code)):
        if not path.endswith((".py", ".pyw", ".pyi")):
            done.notices.append(Notice(path, "not mended: fixes are written in Python files alone"))
            continue
        try:
            data = source.contents(path)
            told = {(f.code, f.line, f.column) for f in report.findings if f.path == path}
            codes = settings.codes_of(Path(path))
            made = cured(path, data, codes, unsafe=unsafe, only=told if report.narrowed else None)
        except Exception as error:  # noqa: BLE001  one file costs itself alone
            why = str(error).partition("\n")[0]
            done.notices.append(Notice(path, f"not mended: {type(error).__name__}: {why}"))
            continue
        if made.codes or made.left:
            done.files.append(made)
    return done


def has_cure(code: str) -> bool:
    return code in RULES and bool(RULES[code].cured)


def cured(
    path: str,
    data: bytes,
    asked: frozenset[str],
    *,
    unsafe: bool,
    only: set[tuple[str, int, int]] | None = None,
) -> Mended:
    """The file with all its cures. Raises ValueError where libcst does not give it back whole.

    `only`: the places that are to be mended, by code, line and column; None for all of them.
    """
    from .tree import SourceTree

    made = Mended(path, data, data)
    if SourceTree(data).module.bytes != data:
        raise ValueError("libcst does not write it back as it is")
    refused: set[Mark] = set()
    allowed = Allowed(only, findings(path, data)) if only is not None else None
    for _round in range(ROUNDS):
        found = findings(path, made.after)
        marks = [(each, mark(each, found)) for each in found if each[0] in asked]
        step, name = next(
            (
                (each, name)
                for each, name in marks
                if name not in refused and (allowed is None or allowed.has(name, found))
            ),
            (None, None),
        )
        if step is None or name is None:
            break
        after, kind = attempt(path, made.after, step, found, unsafe=unsafe)
        if after is None:
            refused.add(name)
            made.left += kind == "unsafe"
        else:
            made.after = after
            made.codes.append(step[0])
            if allowed is not None:
                allowed.mended(name)
    return made


Mark = tuple[str, str, int]


def mark(each: list[Any], found: list[list[Any]]) -> Mark:
    """A finding by what it says of the code, which outlives moved lines."""
    same = [f for f in found if (f[0], f[6], f[7]) == (each[0], each[6], each[7])]
    return (each[0], f"{each[7]}\0{each[6].strip()}", same.index(each))


class Allowed:
    """Which findings a narrowed report has, whatever lines they stand on by now.

    Findings that read the same are counted. When their number is not what it was to be, they are
    left, unless all of them were in the report.
    """

    def __init__(self, only: set[tuple[str, int, int]], found: list[list[Any]]) -> None:
        self.told: dict[tuple[str, str], list[bool]] = {}
        for each in found:
            code, text, _number = mark(each, found)
            self.told.setdefault((code, text), []).append((code, each[1], each[2]) in only)

    def has(self, name: Mark, found: list[list[Any]]) -> bool:
        code, text, number = name
        told = self.told.get((code, text), [])
        same = sum(mark(each, found)[:2] == (code, text) for each in found)
        return told[number] if same == len(told) else bool(told) and all(told)

    def mended(self, name: Mark) -> None:
        code, text, number = name
        told = self.told[code, text]
        del told[min(number, len(told) - 1)]


def findings(path: str, data: bytes) -> list[list[Any]]:
    """What the rules with a cure find, without what is suppressed; later lines first."""
    text = source.decoded(data, [], path)
    if text is None:
        return []
    try:
        judge = judged(Module(path, text, ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):  # as `scan`: what cannot be parsed
        return []
    silent = suppress.suppressions(text)
    found = [
        hit for hit in scan.hits(judge, text) if not scan.silenced(silent, hit[0], hit[1], hit[3])
    ]
    return sorted(found, key=lambda hit: (-hit[1], hit[0]))


def attempt(
    path: str, data: bytes, hit: list[Any], found: list[list[Any]], *, unsafe: bool
) -> tuple[bytes | None, str]:
    """The file with this one cure; None where there is none, or it is not to be believed."""
    from . import cures, cures_redis
    from .tree import SourceTree, Spot

    cure = cures.CURES.get(hit[0]) or cures_redis.CURES.get(hit[0])
    if cure is None:
        return None, ""
    row: str = hit[6]
    column = len(row.encode()[: hit[2] - 1].decode(errors="replace"))
    tree = SourceTree(data)
    kind = cure(tree, Spot(hit[1], column, tuple(line for line, _text in hit[8])))
    if kind is None:
        return None, ""
    if kind == "unsafe" and not unsafe:
        return None, kind
    after = tree.changed()
    left = findings(path, after)
    codes, were = [each[0] for each in left], [each[0] for each in found]
    vanished = codes.count(hit[0]) < were.count(hit[0])
    if not vanished or not parses(after) or any(codes.count(c) > were.count(c) for c in codes):
        return None, ""
    return after, kind


def parses(data: bytes) -> bool:
    try:
        compile(data, "fixed", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def offered(report: AuditReport, settings: Settings) -> None:
    """Put the safe cures of its findings into a report, each by itself; nothing is written."""
    if importlib.util.find_spec("libcst") is None:
        return
    files: dict[str, list[Finding]] = {}
    for each in report.findings:
        if has_cure(each.code) and each.path.endswith((".py", ".pyw", ".pyi")):
            files.setdefault(each.path, []).append(each)
    for path, asked in files.items():
        try:
            data = Path(path).read_bytes()
            found = findings(path, data)
            for each in asked:
                place = [each.code, each.line, each.column]
                hit = next((hit for hit in found if hit[:3] == place), None)
                after = attempt(path, data, hit, found, unsafe=False)[0] if hit else None
                if after is not None:
                    report.fixes[each.fingerprint] = edits(data.decode(), after.decode())
        except Exception as error:  # noqa: BLE001  one file costs itself alone
            why = str(error).partition("\n")[0]
            report.notices.append(Notice(path, f"no fix: {type(error).__name__}: {why}"))


def edits(before: str, after: str) -> tuple[Edit, ...]:
    """What turns one text into the other, in whole lines."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    found = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, first, last, start, stop in matcher.get_opcodes():
        if tag == "equal":
            continue
        end, column = last + 1, 1
        if last == len(old) and old and not old[-1].endswith("\n"):
            end, column = last, len(old[-1]) + 1
        found.append(Edit(first + 1, end, column, "".join(new[start:stop])))
    return tuple(found)


def diff(done: Mending) -> str:
    """What would be written, as one unified diff; endings of lines are not shown."""
    out: list[str] = []
    for each in done.files:
        old, new = (
            text.decode(errors="replace").splitlines() for text in (each.before, each.after)
        )
        out += difflib.unified_diff(old, new, each.path, each.path, lineterm="")
    return "\n".join(out)


def write(done: Mending) -> None:
    """Put each mended file into its place; what was not written is told."""
    for each in list(done.files):
        if each.after == each.before:
            continue
        why = put(Path(each.path), each.before, each.after)
        if why:
            done.files.remove(each)
            done.notices.append(Notice(each.path, f"not mended: {why}"))


def put(path: Path, before: bytes | None, after: bytes) -> str:
    """The reason why the file was left as it is; "" when it was replaced, in one step.

    `before`: what it is to hold until then; None for anything, or for no file at all.
    The folder may belong to another user, and the caller be root. So every step goes through one
    descriptor of the folder and of the file, and rights and owner are given to the file that was
    written, never to a name.
    """
    opened: list[int] = []
    at: dict[str, int] = {}
    new = ""
    try:
        folder, name = os.path.split(path.resolve())
        if os.open in os.supports_dir_fd:
            found, name = walked(path) if is_root() else (os.open(folder, FOLDER), name)
            opened.append(found)
            at, folder = {"dir_fd": found}, ""
        place = os.path.join(folder, name)
        old = existing(place, at, needed=before is not None)
        if old is not None:
            opened.append(old)
            if why := untouchable(os.fstat(old)):
                return why
        made = os.path.join(folder, f".lifehold-{os.urandom(8).hex()}.new")
        rights = 0o666 if old is None else 0o600
        opened.append(fd := os.open(made, os.O_WRONLY | MAKE | WARY, rights, **at))
        new = made
        if why := fill(fd, after, old):
            return why
        if old is not None and before is not None:
            now = os.stat(place, follow_symlinks=False, **at)
            if held(old) != before or not os.path.samestat(now, os.fstat(old)):
                return "it changed while it was mended"
        if at:
            os.replace(new, name, src_dir_fd=opened[0], dst_dir_fd=opened[0])
        else:
            while opened:  # no file that is open can be replaced on Windows
                os.close(opened.pop())
            os.replace(new, place)
        new = ""
    except OSError as error:
        return f"{error.strerror or error}"
    finally:
        if new:
            with contextlib.suppress(OSError):
                os.unlink(new, **at)
        for each in opened:
            os.close(each)
    return ""


def existing(place: str, at: dict[str, int], *, needed: bool) -> int | None:
    """The file at this place, opened; None where there is none, and none is needed."""
    try:
        return os.open(place, os.O_RDONLY | WARY, **at)
    except FileNotFoundError:
        if needed:
            raise
        return None


def held(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read()


def untouchable(facts: os.stat_result) -> str:
    """Why a file with these facts is not to be replaced by this user; "" where it may be."""
    if not stat.S_ISREG(facts.st_mode):
        return "it is no regular file"
    if facts.st_nlink > 1:
        return "it has other names (hard links), which would go on holding the old text"
    if not facts.st_mode & stat.S_IWUSR:
        return "it is read-only"
    if not is_root() and facts.st_uid != getattr(os, "geteuid", lambda: facts.st_uid)():
        return "it belongs to another user, and replaced by you it would be yours"
    return ""


def fill(fd: int, data: bytes, old: int | None) -> str:
    """Give the new file what the old one had: its owner, its rights without special bits, its ACL.

    The folder's default ACL is taken off first: it may name users to whom the old file was closed.
    Answers why that cannot be done; "" when it is done.
    """
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    if old is None:
        os.fsync(fd)
        return ""
    facts, ours = os.fstat(old), os.fstat(fd)
    if hasattr(os, "fchown") and (ours.st_uid, ours.st_gid) != (facts.st_uid, facts.st_gid):
        try:
            os.fchown(fd, facts.st_uid if is_root() else -1, facts.st_gid)
        except OSError:
            return "its group cannot be kept: you are no member of it"
    rights = acl(old)
    if acl(fd) != rights:
        if rights is None:
            os.removexattr(fd, ACL)
        else:
            os.setxattr(fd, ACL, rights)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, facts.st_mode & 0o777)
    if acl(fd) != rights:
        return "its access control list cannot be kept"
    os.fsync(fd)
    return ""


def acl(fd: int) -> bytes | None:
    """The access control list of an open file, as the kernel spells it; None where it has none."""
    if not hasattr(os, "getxattr"):
        return None
    try:
        return os.getxattr(fd, ACL)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS):
            return None
        raise


def is_root() -> bool:
    return getattr(os, "geteuid", lambda: 1)() == 0


def walked(path: Path) -> tuple[int, str]:
    """The folder of the file, opened, and its name there; each step is looked up by itself.

    Root follows a link only out of a folder that root alone can change: any other link may lead
    elsewhere in the next moment, and to what is not its owner's. Raises OSError.
    """
    names = os.path.abspath(path).split("/")[1:]
    at = os.open("/", FOLDER)
    try:
        for _link in range(LINKS):
            name = names.pop(0)
            while names and not is_link(name, at):
                at, above = os.open(name or ".", FOLDER | WARY, dir_fd=at), at
                os.close(above)
                name = names.pop(0)
            if not is_link(name, at):
                return at, name
            holder = os.fstat(at)
            if holder.st_uid != 0 or holder.st_mode & 0o022:
                raise OSError(errno.ELOOP, "a link leads there that others than root can change")
            target = os.readlink(name, dir_fd=at)
            names = [*target.split("/"), *names]
            if target.startswith("/"):
                at, above = os.open("/", FOLDER), at
                os.close(above)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    except BaseException:
        os.close(at)
        raise


def is_link(name: str, folder: int) -> bool:
    try:
        facts = os.stat(name or ".", dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False  # a file that is to be made; a missing folder is told by who opens it
    return stat.S_ISLNK(facts.st_mode)
