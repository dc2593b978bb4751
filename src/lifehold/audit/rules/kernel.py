"""Kernel locks and what undoes them: truncation, a dropped or second handle, fork, mounts."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..blocks import exits, returned
from ..events import PARAMETER, compares_inode
from ..model import nodes, text_of
from ..rule import Hit, at, there
from .create import on_windows
from .scope import instance, shown
from .stale import judgement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Function

NETWORK = re.compile(
    r"(^|/)(mnt|net|srv|media|volumes?)/(nfs|smb|cifs|efs|fsx|filestore|lustre|gluster|ceph)"
    r"|(^|/)nfs\d*/|^(nfs|smb|afs)/|/afs/"
    r"|^\\\\|^//\w",
    re.IGNORECASE,
)
MAKES_LOCK = re.compile(
    r"(^|\.)(\w*FileLock|InterProcessLock|ReaderWriterLock|InterProcessReaderWriterLock"
    r"|ReadWriteLock|PIDLockFile|LockFile|\w*PidFile|Lock)$"
)


def locked_with(judge: Judge, function: Function) -> list[tuple[Event, Event]]:
    """Each kernel lock of this function with the call that opened what it locks."""
    found = []
    for event in judge.own(function):
        if event.kind == "flock":
            found += [
                (event, opened)
                for opened in judge.reader.opened(function, event.facts["handle_expr"])
            ]
        elif event.kind == "call" and any(
            e.kind == "flock" for e in judge.whole(event.facts["helper"])
        ):
            inner = [e for e in judge.whole(function) if e.site is event.site and e.kind == "flock"]
            for given in event.facts["called"].args:
                found += [
                    (inner[0], opened) for opened in judge.reader.opened(function, given) if inner
                ]
    return found


def removes_flocked(judge: Judge) -> Iterator[Hit]:
    """LH108."""
    if compares_inode(judge.module):
        return
    for function in judge.functions:
        alone = judge.made_exclusively(function)
        flocked = judge.flocked(function)
        for event in judge.whole(function) if flocked else ():
            if event.via is not None and not told_of_caller(judge, event):
                continue
            if event.kind != "unlink" or event.key not in flocked or event.key in alone:
                continue
            if on_windows(event):
                continue
            lock = flocked[event.key]
            same = (
                lock.where in (function, function.parent) or "⟨" not in event.key
            )  # each has parameters of its own
            of_library = same and lock.kind == "library_lock"
            if not (event.lockish or judge.named_lock(function) or of_library):
                continue  # data that is locked itself: LH114
            judged = judgement(judge, function, event)
            if before_lock(judge, function, event) or (judged and judged.kind in ("alive", "age")):
                continue  # LH106 has it
            yield at(
                event,
                f"`{event.name}` is locked on line {lock.line} and unlinked here: who waits on the"
                " old file gets its lock while the next one locks a new file of the same name;"
                " both hold the lock",
                there(lock, "locked here"),
            )
            break


def told_of_caller(judge: Judge, event: Event) -> bool:
    """A removal in a helper that knows nothing of locks belongs to who calls it."""
    inner = event.facts["inside"]
    helper = event.via
    if helper is None or inner.via is not None:
        return False
    if PARAMETER.fullmatch(inner.key) and not judge.has_flock(judge.whole(helper)):
        return True  # it removes what it is handed
    if inner.lockish or judge.named_lock(helper):
        return False
    return not judge.has_flock(judge.own(helper)) and not words.speaks_of_lock(inner.key)


def before_lock(judge: Judge, function: Function, act: Event) -> bool:
    """Removed ahead of the lock in the same function: that is a stale break (LH106)."""
    seen = False
    for event in judge.whole(function):
        if event is act:
            seen = True
        if event.kind == "flock" and not seen:
            return False
        if event.kind == "flock" and seen and event.where is function:
            return not any(f.kind == "try" and f.part in ("finally", "handler") for f in act.frames)
    return False


def truncates_first(judge: Judge) -> Iterator[Hit]:
    """LH113."""
    for function in judge.functions:
        for event, opened in locked_with(judge, function):
            if opened.where is not function or opened.line > event.line:
                continue
            if not opened.facts.get("truncates") or unique(function, opened):
                continue
            written = content_of(judge, function, opened)
            if written is None:
                continue
            yield at(
                opened,
                f"`{opened.name}` is emptied here and locked only on line {event.line}: a refused"
                " attempt has already erased what the holder wrote",
                there(event, "locked here"),
                there(written, "the content that is lost"),
            )
            break
        yield from mode_handed_over(judge, function)


def unique(function: Function, opened: Event) -> bool:
    """A file that nobody else can have under this name."""
    texts = set(function.texts(opened.expr))
    return bool(texts & {"uuid4", "uuid1", "mkstemp", "mkdtemp", "NamedTemporaryFile", "token_hex"})


def content_of(judge: Judge, function: Function, opened: Event) -> Event | None:
    """What is written through this handle, here or in another method of the class."""
    handle = str(opened.facts.get("handle", ""))
    if not handle:
        return None
    places = [function]
    if handle.startswith("self.") and function.within:
        places += [m for m in function.within.methods.values() if m is not function]
    for place in places:
        for event in judge.own(place):
            called = event.facts.get("called")
            if called is None:
                continue
            name = text_of(called.func)
            if name in (f"{handle}.write", f"{handle}.writelines"):
                return event
            given = [text_of(each) for each in called.args] + [
                text_of(value) for value in called.keywords.values()
            ]
            if handle in given and name.rpartition(".")[2] in WRITERS:
                return event
            if any(f"{handle}.fileno" == text_of(getattr(a, "func", None)) for a in called.args):
                if name == "os.write":
                    return event
    return None


WRITERS = frozenset(
    "dump print write save writer DictWriter safe_dump to_csv savetxt copyfileobj".split()
)


def mode_handed_over(judge: Judge, function: Function) -> Iterator[Hit]:
    """`locked(path, "w")`, where the helper opens before it locks."""
    for call in judge.own(function):
        helper = call.facts.get("helper")
        if helper is None or not judge.has_flock(judge.own(helper)):
            continue
        for event in judge.whole(function):
            inner = event.facts.get("inside")
            if event.site is call.site and inner is not None and "mode_from" in inner.facts:
                if event.facts.get("truncates") and inner.where is helper:
                    yield at(
                        call_event(call),
                        f"`{helper.name}` opens `{event.name}` with this mode before it locks it:"
                        ' "w" empties the file of whoever holds it',
                        *(),
                    )
                    return


def call_event(call: Event) -> Event:
    return call


def locks_the_data(judge: Judge) -> Iterator[Hit]:
    """LH114."""
    for function in judge.functions:
        yield from locks_what_it_opens(judge, function)
        yield from replaced_under(judge, function)
        whole = judge.whole(function)
        for event, opened in locked_with(judge, function):
            if opened.lockish or judge.named_lock(function):
                continue
            if opened.where is function and from_caller(opened):
                yield at(
                    event,
                    f"the lock is on the data itself, `{opened.name}`, opened as the caller says:"
                    " whoever replaces or removes that file takes the lock away with it",
                    there(opened, "opened here"),
                )
                break
            replaced = [
                e
                for e in whole
                if e.kind == "write" and e.facts.get("rename") and e.key == opened.key
            ]
            if replaced:
                yield at(
                    event,
                    f"`{opened.name}` is locked, and replaced on line {replaced[0].line}: who"
                    " waits then locks the old file, and two writers meet",
                    there(replaced[0], "replaced here"),
                )
                break
            rewritten = rewrites(judge, function, opened)
            if rewritten is not None:
                yield at(
                    event,
                    f"the lock is on the data itself, `{opened.name}`: whoever replaces or removes"
                    " that file takes the lock away with it",
                    there(rewritten, "rewritten in place here"),
                )
                break


def replaced_under(judge: Judge, function: Function) -> Iterator[Hit]:
    """`with self._locked():`, which locks the data, and in its block the data is replaced."""
    for event in judge.whole(function):
        if event.kind != "flock" or event.via is None or not event.via.manages_context:
            continue
        base = itself(event)
        for opened in judge.reader.opened(base.where, base.facts.get("handle_expr")):
            known = [e for e in judge.whole(function) if itself(e) is opened]
            keys = {e.key for e in known if not e.lockish}
            for act in judge.own(function):
                if act.kind == "write" and act.facts.get("rename") and act.key in keys:
                    yield Hit(
                        function,
                        act.site,
                        f"`{act.name}` is locked by {event.via.title} and replaced here: who waits"
                        " then locks the old file, and two writers meet",
                        (there(event, "locked here"),),
                    )
                    return


def locks_what_it_opens(judge: Judge, function: Function) -> Iterator[Hit]:
    """`with FileLock("data.txt"): open("data.txt")`."""
    for stmt, _frames in function.walked:
        if not isinstance(stmt, ast.With | ast.AsyncWith):
            continue
        for item in stmt.items:
            entered = instance(judge, function, item.context_expr)
            if entered is None or words.speaks_of_lock(entered[1]):
                continue
            library = judge.module.dotted(entered[2].func).partition(".")[0]
            if library not in ("filelock", "fasteners"):
                continue  # a class of one's own may lock a companion
            for event in judge.own(function):
                if event.kind not in ("read", "write", "open") or event.key != entered[1]:
                    continue
                if any(f.node is stmt for f in event.frames):
                    yield Hit(
                        function,
                        entered[2],
                        f"the lock is on the data itself, `{shown(entered[1])}`: whoever replaces"
                        " or removes that file takes the lock away with it",
                        (there(event, "opened here as data"),),
                    )
                    return


def from_caller(opened: Event) -> bool:
    """Is the mode of the file the caller's: is it opened to be read and written by others?"""
    called = opened.facts["called"]
    return "mode_from" in opened.facts or any(isinstance(a, ast.Starred) for a in called.args)


def rewrites(judge: Judge, function: Function, opened: Event) -> Event | None:
    handle = str(opened.facts.get("handle", ""))
    reads = writes = None
    for event in judge.own(function):
        called = event.facts.get("called")
        if called is None or not handle:
            continue
        name = text_of(called.func)
        given = [text_of(each) for each in called.args]
        last = name.rpartition(".")[2]
        if name == f"{handle}.read" or (
            handle in given and last in ("load", "reader", "safe_load")
        ):
            reads = event
        if name == f"{handle}.truncate" or (handle in given and last in ("dump", "safe_dump")):
            writes = event
    if opened.facts.get("truncates"):
        return written_whole(judge, function, handle)
    return writes if reads else None


def written_whole(judge: Judge, function: Function, handle: str) -> Event | None:
    """What writes data into the file that was emptied: `json.dump(rows, file)`."""
    for event in judge.own(function):
        called = event.facts.get("called")
        last = text_of(called.func).rpartition(".")[2] if called is not None and handle else ""
        if last in WRITERS - {"print", "write"}:
            given = [*called.args, *called.keywords.values()] if called is not None else []
            if any(text_of(each) == handle for each in given):
                return event
    return None


def drops_handle(judge: Judge) -> Iterator[Hit]:
    """LH115."""
    for function in judge.functions:
        yield from drops_lock(judge, function)
        for event in judge.own(function):
            if event.kind != "flock" or only_asks(judge, function, event):
                continue
            handle = event.facts["handle_expr"]
            inner = (
                handle.func.value
                if isinstance(handle, ast.Call)
                and isinstance(handle.func, ast.Attribute)
                and handle.func.attr == "fileno"
                else handle
            )
            if isinstance(inner, ast.Call) and opens_file(judge, inner):
                yield at(
                    event,
                    "the file that is locked here has no name: it is closed at once, and the lock"
                    " ends with this statement",
                )
                break
            if isinstance(inner, ast.Name) and forgotten(judge, function, inner.id, event):
                yield at(
                    event,
                    f"`{inner.id}` is a local name and {function.title} returns: the file is closed"
                    " then, and the lock ends",
                )
                break


def only_asks(judge: Judge, function: Function, lock: Event) -> bool:
    """Is nothing to be held: is "is it held?" all that is answered, True where it is refused?

    Where somebody here goes on to work at False, the lock was meant.
    """
    if not lock.facts["nonblocking"] or not says_so(function, lock, free=False):
        return False
    first = words.pieces(function.name)[:1]
    if words.acquires(function.name) and not set(first) & {"is", "are", "has"}:
        return False
    for caller in judge.callers(function):
        asked = [e for e in judge.own(caller) if e.facts.get("helper") is function]
        for stmt, _frames in caller.walked:
            if isinstance(stmt, ast.If) and works_at_no(stmt):
                if any(judge.rests_on(caller, stmt.test, event) for event in asked):
                    return False
    return True


def works_at_no(stmt: ast.If) -> bool:
    """`if busy(): return`, `if not busy(): work()`."""
    return exits(stmt.body) or isinstance(stmt.test, ast.UnaryOp)


def drops_lock(judge: Judge, function: Function) -> Iterator[Hit]:
    """`FileLock(path).acquire()` as a statement: the object goes, and its file with it."""
    for event in judge.own(function):
        if event.kind != "library_lock":
            continue
        stmt = event.facts["statement"]
        value = stmt.value if isinstance(stmt, ast.Expr) else None
        value = value.value if isinstance(value, ast.Await) else value
        made = event.facts["name"].endswith("LockFile") and value is event.site
        taken = (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr == "acquire"
            and value.func.value is event.site
        )
        if made or taken:
            yield at(
                event,
                "the lock that is taken here has no name: the object is dropped at once, its file"
                " is closed, and the lock ends with this statement",
            )


def opens_file(judge: Judge, call: ast.Call) -> bool:
    """`open(path)` or `path.open()`: a file that is closed when nobody has it any more."""
    name = judge.module.dotted(call.func)
    method = isinstance(call.func, ast.Attribute) and call.func.attr == "open"
    return name in ("open", "io.open", "codecs.open", "os.fdopen") or (
        method and name.partition(".")[0] not in ("os", "gzip", "bz2", "lzma", "webbrowser")
    )


def forgotten(judge: Judge, function: Function, name: str, event: Event) -> bool:
    """Does the handle die with this function, although the function is to acquire?"""
    if function.name == "" or function.manages_context or not function.name:
        return False
    value = function.only_value(name)
    named = words.acquires(function.name) and judge_lock_name(function)
    if not named and not says_so(function, event) and not or_ends(judge, function, name, event):
        if not (isinstance(value, ast.Call) and ends_with_lock(judge, function, value, event)):
            return False
    if not (isinstance(value, ast.Call) and opens_file(judge, value)):
        return False
    if any(
        isinstance(s, ast.With | ast.AsyncWith) and any(value is i.context_expr for i in s.items)
        for s, _ in function.walked
    ):
        return False
    for stmt in function.body:
        for node in ast.walk(stmt):
            if isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
                return False
            if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.value)):
                    return False
            if isinstance(node, ast.Assign) and node.value is not value:
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.value)):
                    return False
            if isinstance(node, ast.Call) and node is not event.site:
                given = [*node.args, *[k.value for k in node.keywords]]
                own = text_of(node.func) == f"{name}.fileno"
                if not own and any(text_of(each) == name for each in given):
                    if text_of(node.func) not in ("fcntl.flock", "fcntl.lockf"):
                        return False
                if text_of(node.func) == f"{name}.close":
                    handled = any(
                        isinstance(s, ast.Try) and any(node in ast.walk(h) for h in s.handlers)
                        for s, _ in function.walked
                    )
                    if not handled:
                        return False
                if text_of(node.func) == "fcntl.flock" and "LOCK_UN" in ast.dump(node):
                    return False
            if isinstance(node, ast.FunctionDef | ast.Lambda) and node is not function.node:
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node)):
                    return False
    return True


def or_ends(judge: Judge, function: Function, name: str, lock: Event) -> bool:
    """Does a refusal end the program, and a success write down who holds it, and no more?"""
    if not lock.facts["nonblocking"] or any(returned(function.body)):
        return False
    ended = any(
        isinstance(n, ast.Call) and text_of(n.func) in ("sys.exit", "exit", "os._exit")
        for handler in judge.handled_by(lock)
        for stmt in handler.body
        for n in nodes(stmt)
    )
    later = [
        text_of(e.facts["called"].func)
        for e in judge.own(function)
        if e.line > lock.line and not any(f.part == "handler" for f in e.frames)
    ]
    own = (f"{name}.", "os.getpid", "str", "os.ftruncate", "os.write")
    return ended and all(called.startswith(own) for called in later)


def says_so(function: Function, lock: Event, *, free: bool = True) -> bool:
    """Does it lock, answer this, and answer the other where the lock is refused?"""
    answers = [
        s
        for s, frames in function.walked
        if isinstance(s, ast.Return) and not any(f.part == "handler" for f in frames)
    ]
    refused = [
        s
        for s, frames in function.walked
        if isinstance(s, ast.Return) and any(f.part == "handler" for f in frames)
    ]
    yes = [s for s in answers if isinstance(s.value, ast.Constant) and s.value.value is free]
    other = not free
    no = [s for s in refused if isinstance(s.value, ast.Constant) and s.value.value is other]
    return bool(yes and no) and len(yes) == len(answers) and lock.kind == "flock"


def ends_with_lock(judge: Judge, function: Function, opened: ast.Call, lock: Event) -> bool:
    """Is a lock file locked, and nothing done under it before the function returns?"""
    of_path = (
        isinstance(opened.func, ast.Attribute) and judge.module.dotted(opened.func)[:3] != "io."
    )
    path = opened.args[0] if opened.args else None
    if isinstance(opened.func, ast.Attribute) and of_path:
        path = opened.func.value
    if not function.lockish(path) and not words.acquires(function.name):
        return False
    later = (e for e in judge.own(function) if e.line > lock.line)
    return all(any(f.part == "handler" for f in e.frames) for e in later)


def judge_lock_name(function: Function) -> bool:
    owner = function.within.name if function.within else ""
    text = f"{owner} {function.name}".lower()
    return words.speaks_of_lock(text) or "instance" in text or "acquire" in text


def lost_by_close(judge: Judge) -> Iterator[Hit]:
    """LH117."""
    for function in judge.functions:
        for event, opened in locked_with(judge, function):
            if not event.facts.get("posix") or opened.where is not function:
                continue
            for other in judge.whole(function):
                moved = other.facts.get("rename")
                if other.kind in ("read", "write", "open") and other is not opened and not moved:
                    if (
                        other.key == opened.key
                        and other.line > event.line
                        and held(judge, event, other)
                        and not text_of(getattr(other.site, "func", None)).endswith("Process")
                    ):
                        yield at(
                            itself(other),
                            f"`{other.name}` is opened a second time while it is locked by lockf:"
                            " closing this handle drops the lock, whoever else has the file open",
                            there(event, "locked here"),
                        )
                        return
        yield from read_while_held(judge, function)
    yield from read_since_made(judge)


def read_since_made(judge: Judge) -> Iterator[Hit]:
    """`__init__` that keeps its lockf, and a method that opens the same file again."""
    for group in judge.module.classes.values():
        made = group.methods.get("__init__")
        for lock in judge.own(made) if made is not None else ():
            if lock.kind != "flock" or not lock.facts["posix"]:
                continue
            if not text_of(lock.facts["handle_expr"]).startswith("self."):
                continue
            opened = judge.reader.opened(lock.where, lock.facts["handle_expr"])
            keys = {key for each in opened for key in (each.key, *judge.also_known(each))}
            for method in group.methods.values():
                for other in judge.own(method) if method is not made else ():
                    if other.kind == "read" and other.key in keys:
                        yield at(
                            other,
                            f"`{other.name}` is locked by lockf since {group.name} was made:"
                            " closing this handle drops the lock, whoever else has the file open",
                            there(lock, "locked here"),
                        )
                        return


def read_while_held(judge: Judge, function: Function) -> Iterator[Hit]:
    """`self.acquire()`, which keeps its lockf, and then `self.describe()`, which opens the file."""
    whole = judge.whole(function)
    for lock in whole:
        if lock.kind != "flock" or not lock.facts["posix"]:
            continue
        kept = "self." in text_of(lock.facts["handle_expr"])
        opened = judge.handles(lock)
        opened += [itself(each) for each in opened]
        keys = {key for each in opened for key in (each.key, *judge.also_known(each))}
        group = itself(lock).where.within
        for other in whole if kept else ():
            if other.via is None or other.kind not in ("read", "write", "open"):
                continue
            if other.facts.get("rename"):
                continue
            base = itself(other)
            if group is None or base.where.within is not group:
                continue
            if base.key in keys and other.line > lock.line and held(judge, lock, other):
                yield at(
                    itself(other),
                    f"`{other.name}` is opened while {function.title} has it locked by lockf:"
                    " closing this handle drops the lock, whoever else has the file open",
                    there(itself(lock), "locked here"),
                )
                return


def itself(event: Event) -> Event:
    """What happens in a helper, where it stands there."""
    while "inside" in event.facts:
        event = event.facts["inside"]
    return event


def held(judge: Judge, event: Event, other: Event) -> bool:
    """Is the lock still held at the other place, as far as the order of lines tells?"""
    if any(f.kind == "try" and f.part == "handler" for f in other.frames):
        return False
    return not any(
        e.kind == "unlock" and event.line < e.line < other.line for e in judge.own(event.where)
    )


def forked(judge: Judge) -> Iterator[Hit]:
    """LH118."""
    for function in judge.functions:
        locks = [e for e in judge.whole(function) if e.kind == "flock" and not e.facts["windows"]]
        for event in judge.whole(function):
            earlier = [e for e in locks if e.line < event.line]
            started = str(event.facts.get("name", "")).endswith("Popen")
            if earlier and event.facts.get("name") == "os.closerange":
                yield at(
                    event,
                    f"the handle that was locked on line {earlier[-1].line} is closed here with all"
                    " others: the lock ends, and the work goes on without it",
                    there(earlier[-1], "locked here"),
                )
                break
            if not earlier or (event.via is not None and event.kind != "fork" and not started):
                continue
            if any(
                e.kind == "unlock" and earlier[-1].line < e.line < event.line
                for e in judge.whole(function)
            ):
                continue
            if event.kind == "fork" and earlier[-1].facts["posix"]:
                yield at(
                    event,
                    f"the lock of line {earlier[-1].line} is a POSIX lock: the child made here does"
                    " not have it, and it ends with the parent",
                    there(earlier[-1], "locked here"),
                )
                break
            called = event.facts.get("called")
            if called is not None and event.facts.get("name", "").endswith("Popen"):
                given = called.keywords.get("close_fds")
                open_all = isinstance(given, ast.Constant) and given.value is False
                handed = hands_on(called.keywords.get("pass_fds"), earlier[-1])
                if (open_all or handed) and inherits(earlier[-1]):
                    yield at(
                        event,
                        f"the child inherits the handle that was locked on line {earlier[-1].line}:"
                        " the lock lasts as long as the child, however the parent ends",
                        there(earlier[-1], "locked here"),
                    )
                    break


def hands_on(given: ast.expr | None, lock: Event) -> bool:
    """`pass_fds=(fd,)` of the number that is locked."""
    names = {text_of(n) for n in nodes(given)} if given is not None else set()
    handle = lock.facts.get("handle_expr")
    return any(text_of(n) in names for n in nodes(handle) if text_of(n)) if handle else False


def inherits(lock: Event) -> bool:
    return not lock.facts["posix"]


DATABASES = frozenset("sqlite3.connect aiosqlite.connect apsw.Connection".split())


def on_network(judge: Judge) -> Iterator[Hit]:
    """LH121."""
    for function in judge.functions:
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not called.args:
                continue
            name = event.facts.get("name", "")
            if not (MAKES_LOCK.search(name) or event.kind == "flock" or name in DATABASES):
                continue
            path = called.args[0]
            texts = list(function.texts(path))
            if event.kind == "flock":
                texts = [
                    t for o in judge.reader.opened(function, path) for t in o.where.texts(o.expr)
                ]
            hit = next((t for t in texts if on_mount(t, judge.mounts)), None)
            if hit is not None:
                yield at(
                    event,
                    f"`{hit}` is on a network file system: a kernel lock there is a promise of the"
                    " server, or of this host alone, and a holder that is cut off loses it unseen",
                )
                break


def on_mount(text: str, mounts: tuple[str, ...]) -> bool:
    """Does this path lead to a network file system, by its words or by the configuration?"""
    if "://" in text:
        return False
    return bool(NETWORK.search(text)) or any(
        text == mount or text.startswith(mount.rstrip("/") + "/") for mount in mounts
    )
