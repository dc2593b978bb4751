"""Files into modules: what is read, what is skipped and why, and Python 2 and notebooks too.

Nothing that a file holds ends the run: each trouble becomes a notice at that file.
"""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import re
import stat
import tokenize
import warnings
from typing import TYPE_CHECKING

from .finding import Notice
from .model import Module

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST = 5_000_000  # bytes; what is larger was written by a program
LONGEST_LINE = 200_000
# Every file that can hold a finding has a word of the first kind and an act of the second. Each
# pattern begins with plain letters, which the engine looks for fast, and looks back from there.
HINTS = (
    re.compile(rb"lock(?<![A-Za-z]lock)"),
    re.compile(rb"LOCK(?<![A-Z]LOCK)"),
    re.compile(rb"lock(?:file|_file|path|dir|_)"),
    re.compile(rb"pid_?(?:[fF]|[lL]ock|[pP]ath|exists)"),
    re.compile(rb"[lL]ease(?<![A-Za-z]lease)(?<!Release)"),
    re.compile(rb"PID_?[FLP]"),
    re.compile(rb"Pid_?[FLP]"),
    re.compile(rb"running(?:(?<=already running)|(?<=still running)|(?<=[_.]running))"),
)
PLAIN = tuple(
    hint.encode()
    for hint in (
        "Lock .lck .pid os.kill( utex setnx nx=True emaphore /proc flock lockf idempot"
    ).split()
)
ACTS = tuple(
    act.encode()
    for act in (
        "flock lockf msvcrt unlink os.remove rmtree rmdir O_EXCL O_CREAT .kill( pid_exists /proc"
        " setnx nx= redis Redis cache.add( cache.set( advisory getpid put_item FileLock update_item"
        " getmtime st_mtime kazoo lifehold filelock fasteners portalocker acquire("
        " InterProcessLock Process( ProcessPool multiprocessing .exists( os.rename .execute("
        " etcd consul find_one insert_one caches[ memcache zookeeper psutil"
        " .commit( .save( .expire( .pexpire( put_object( upload_from_string("
    ).split()
)
# The same of texts that often mean something else: open(p, "x") and Path.replace(target).
ACTS_CLOSELY = (
    re.compile(rb"open\(.{0,200}?['\"]x[bt+]{0,2}['\"]", re.DOTALL),
    re.compile(rb"""\b(ps|kill)['", ]+-[p0]"""),
    re.compile(rb"\.set\([^\n]*\b(?:ex|px)="),
    re.compile(rb"mode\s*=\s*['\"]x[bt+]{0,2}['\"]"),
    re.compile(rb"\.replace\((?:[^,()]|\([^()]*\))*\)"),
)
WORDS = tuple(
    word.encode()
    for word in (
        "lock Lock LOCK lck pid PID Pid utex setnx nx=True emaphore lease Lease running idempot"
    ).split()
)
SHELL_WORDS = tuple(
    word.encode() for word in "lock LOCK Lock lck pid PID Pid /proc/ volumes: rails running".split()
)

PYTHON_2 = (
    (re.compile(r"^(\s*except\s+[^,:(]+|\s*except\s*\([^)]*\))\s*,\s*(\w+)\s*:"), r"\1 as \2:"),
    (re.compile(r"^(\s*)print\s*>>\s*[^,\n]+,?\s*(.*)$"), r"\1print(\2)"),
    (re.compile(r"^(\s*)print\s+([^(=\s].*?);?\s*$"), r"\1print(\2)"),
    (re.compile(r"^(\s*)print\s*$"), r"\1print()"),
    (re.compile(r"^(\s*)exec\s+([^(].*)$"), r"\1exec(\2)"),
    (re.compile(r"^(\s*)raise\s+([\w.]+)\s*,\s*([^,]+?)\s*$"), r"\1raise \2(\3)"),
    (re.compile(r"(?<![\w.])0([0-7]{2,})(?![\w.])"), r"0o\1"),
    (re.compile(r"<>"), "!="),
    (re.compile(r"(?<![\w.])(\d+)[lL](?!\w)"), r"\1"),
    (re.compile(r"(?<!\w)ur(['\"])"), r"r\1"),
    (re.compile(r"`([^`\n]+)`"), r"repr(\1)"),
)


def contents(path: str, most: int = -1) -> bytes:
    """What a regular file holds. Raises OSError for anything else, which may never answer."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        return file.read(most)


def may_hold_locks(data: bytes) -> bool:
    """Can a file of this content hold a finding at all? Asked in microseconds."""
    for word in WORDS:
        if word in data:
            break
    else:
        return False
    return any(act in data for act in ACTS) or any(act.search(data) for act in ACTS_CLOSELY)


# Pairs of acts by which something is a lock, whatever it is called: one of each in the same file.
FORMS = tuple(
    (tuple(word.encode() for word in one.split()), tuple(word.encode() for word in other.split()))
    for one, other in (
        ("O_EXCL FileExistsError EEXIST", "unlink os.remove rmdir"),
        ("getpid(", "unlink os.remove( rmdir"),
        (
            "setnx( setex( caches[ redis Redis memcache django.core.cache",
            ".delete( .expire( .pexpire(",
        ),
        ("etcd consul", ".put("),
        (".claim .lease .busy .running .guard .inuse .sentinel", "glob("),
        ("claimed_by locked_by held_by leased_by", "UPDATE update"),
        ("sqlite3.connect( aiosqlite", "/nfs nfs/ /mnt/ /efs"),
        ("attribute_not_exists get_item(", "put_item( update_item( delete_item("),
        ("flock( lockf(", "fcntl"),
        ("Lock(", "gunicorn celery dramatiq huey uwsgi workers prefork"),
        ("KazooClient", "Election( Lock( Semaphore("),
        ("advisory_lock", "advisory_unlock"),
    )
)
REMOVED = tuple(word.encode() for word in "unlink os.remove( rmdir rmtree".split())
STORED = tuple(
    word.encode()
    for word in (
        "redis cache Redis boto3 dynamo fcntl advisory Lock( Kazoo .set( sqlite etcd consul _by"
    ).split()
)


def may_hold_forms(data: bytes) -> bool:
    """The same of a lock that no word tells, but what is done to it (forms.py)."""
    if not any(word in data for word in (*REMOVED, *STORED)):
        return False
    if any(
        any(word in data for word in one) and any(word in data for word in other)
        for one, other in FORMS
    ):
        return True
    if any(word in data for word in REMOVED) and LOOKED_FOR.search(data) is not None:
        return True
    return b".set(" in data and SET_TO_TIME.search(data) is not None


# `if exists(path): return`, also behind a line or two, and `while exists(path): sleep(1)`.
LOOKED_FOR = re.compile(
    rb"(?:exists|isfile|isdir|is_file|is_dir)\([^\n]*:[ ]*(?:#[^\n]*)?\n(?:[^\n]*\n){0,4}?"
    rb"[ \t]+(?:return|raise|break|continue|sys\.exit|exit|time\.sleep|sleep|await)\b"
)
SET_TO_TIME = re.compile(rb"\.set\([^\n]*time\(\)")


def may_be_shell(data: bytes) -> bool:
    """The same of a shell script or a unit."""
    return any(word in data for word in SHELL_WORDS)


def speaks_of_locks(data: bytes) -> bool:
    """The same, asked closely: `lock` as a word of its own, and no part of `block`."""
    if any(hint in data for hint in PLAIN):
        return True
    return any(hint.search(data) is not None for hint in HINTS)


def decoded(data: bytes, notices: list[Notice], path: str) -> str | None:
    """The text of a source file by its own declaration, or a notice."""
    if b"\0" in data:
        wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        text = _tried(lambda: data.decode("utf-16")) if wide else None
        if text is None:
            notices.append(Notice(path, "not read: it holds null bytes, so it is no Python source"))
        return text
    try:
        coding, _lines = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), coding, newline=None).read()
    except (SyntaxError, UnicodeDecodeError, LookupError):
        notices.append(Notice(path, "its encoding is unknown: read as Latin-1"))
        return data.decode("latin-1").replace("\r\n", "\n")


def _tried(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except UnicodeDecodeError:
        return None


def parsed(path: str, text: str, notices: list[Notice]) -> Module | None:
    """The module, or a notice why there is none."""
    if max((len(line) for line in text.splitlines()), default=0) > LONGEST_LINE:
        notices.append(Notice(path, "not read: a line is longer than 200,000 characters"))
        return None
    try:
        return _module(path, text)
    except SyntaxError as error:
        first = error
    except (RecursionError, MemoryError, ValueError) as error:
        notices.append(Notice(path, f"not read: Python cannot parse it ({type(error).__name__})"))
        return None
    older = translated(text)
    try:
        module = _module(path, older) if older != text else None
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        module = None
    if module is None:
        why = f"not read: {first.msg} on line {first.lineno}"
        notices.append(Notice(path, why, first.lineno or 0))
        return None
    notices.append(Notice(path, "Python 2 source: read after a translation, line by line"))
    return module


def _module(path: str, text: str) -> Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    return Module(path, text, tree)


def translated(text: str) -> str:
    """Python 2 as Python 3, as far as single lines show it; lines keep their numbers."""
    out = []
    for raw in text.expandtabs(8).split("\n"):
        line = raw
        for old, new in PYTHON_2:
            line = old.sub(new, line)
        if line.lstrip().startswith("print(") and line.count("(") != line.count(")"):
            line = re.sub(r"^(\s*)print\s+", r"\1_ = ", raw)  # it goes on in the next line
        out.append(line)
    return "\n".join(out)


def notebook(text: str) -> str | None:
    """The code cells of a notebook in the places of their own lines; None if it is none.

    A finding then stands on the very line of the JSON file that holds the code.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    wanted = [line for source in sources for line in _lines_of(source)]
    out = [""] * (text.count("\n") + 1)
    numbers = iter(enumerate(text.split("\n")))
    for line in wanted:
        code = line.rstrip("\n")
        spelled = (json.dumps(code)[1:-1], json.dumps(code, ensure_ascii=False)[1:-1])
        for number, raw in numbers:
            if raw.strip().rstrip(",").strip('"').removesuffix("\\n") in spelled:
                out[number] = "" if code.lstrip().startswith(("%", "!", "?")) else code
                break
    return "\n".join(out)


def _lines_of(source: object) -> list[str]:
    lines = source.splitlines() if isinstance(source, str) else source
    return [str(line) for line in lines] if isinstance(lines, list) else []
