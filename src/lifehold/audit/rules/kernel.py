"""Kernel locks and what undoes them: truncation, a dropped or second handle, fork, mounts."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..model import calls_in, nodes, text_of
from ..rule import Hit, at, there

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
            if handle in given and name.rpartition(".")[2] in ("dump", "print", "write", "save"):
                return event
            if any(f"{handle}.fileno" == text_of(getattr(a, "func", None)) for a in called.args):
                if name == "os.write":
                    return event
    return None


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
    return writes if reads else None


def drops_handle(judge: Judge) -> Iterator[Hit]:
    """LH115."""
    for function in judge.functions:
        yield from drops_lock(judge, function)
        for event in judge.own(function):
            if event.kind != "flock":
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
    if not (words.acquires(function.name) and judge_lock_name(function)):
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


def ends_with_lock(judge: Judge, function: Function, opened: ast.Call, lock: Event) -> bool:
    """Is a lock file locked, and nothing done under it before the function returns?"""
    of_path = (
        isinstance(opened.func, ast.Attribute) and judge.module.dotted(opened.func)[:3] != "io."
    )
    path = opened.args[0] if opened.args else None
    if isinstance(opened.func, ast.Attribute) and of_path:
        path = opened.func.value
    if not function.lockish(path):
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
                if other.kind in ("read", "write", "open") and other is not opened:
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
            if not earlier or (event.via is not None and event.kind != "fork"):
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
                if (
                    isinstance(given, ast.Constant)
                    and given.value is False
                    and inherits(earlier[-1])
                ):
                    yield at(
                        event,
                        f"the child inherits the handle that was locked on line {earlier[-1].line}:"
                        " the lock lasts as long as the child, however the parent ends",
                        there(earlier[-1], "locked here"),
                    )
                    break


def inherits(lock: Event) -> bool:
    return not lock.facts["posix"]


def second_instance(judge: Judge) -> Iterator[Hit]:
    """LH119."""
    for function in judge.functions:
        if "lock" not in judge.module.lower:
            return
        held_here = [
            (stmt, frames)
            for stmt, frames in function.walked
            if isinstance(stmt, ast.With | ast.AsyncWith)
        ]
        for stmt, _frames in held_here:
            for item in stmt.items:
                outer = instance(judge, function, item.context_expr)
                if outer is None:
                    continue
                found = inner_instance(judge, function, stmt, outer)
                if found is not None:
                    line, where = found
                    yield Hit(
                        function,
                        stmt,
                        f"`{shown(outer[1])}` is locked here, and line {line} locks it again by"
                        f" another object{where}: this thread waits for itself",
                    )
                    return


def shown(key: str) -> str:
    return key.replace("⟨", "").replace("⟩", "")[:60]


def instance(judge: Judge, function: Function, node: ast.AST) -> tuple[str, str, ast.Call] | None:
    """Class, path and making call of a lock object that is entered here."""
    if isinstance(node, ast.Name):
        value = function.only_value(node.id)
        if value is None:
            found = list(function.values(node.id))
            value = found[0] if len(found) == 1 else None
        node = value if value is not None else node
    if not isinstance(node, ast.Call) or not node.args:
        return None
    name = judge.module.dotted(node.func)
    last = name.rpartition(".")[2]
    known = re.search(r"FileLock$|InterProcessLock$|^LockFile$|PIDLockFile$", last)
    if not known or "Singleton" in last:
        return None
    if any(k.arg == "is_singleton" for k in node.keywords):
        return None
    return last, function.key(node.args[0]), node


def inner_instance(
    judge: Judge,
    function: Function,
    stmt: ast.With | ast.AsyncWith,
    outer: tuple[str, str, ast.Call],
) -> tuple[int, str] | None:
    for inner, frames in function.walked:
        if isinstance(inner, ast.With | ast.AsyncWith) and any(f.node is stmt for f in frames):
            for item in inner.items:
                found = instance(judge, function, item.context_expr)
                if found and found[:2] == outer[:2] and found[2] is not outer[2]:
                    return inner.lineno, ""
    for event in judge.own(function):
        helper = event.facts.get("helper")
        if helper is None or not any(f.node is stmt for f in event.frames):
            continue
        for inner, _frames in helper.walked:
            if not isinstance(inner, ast.With | ast.AsyncWith):
                continue
            for item in inner.items:
                found = instance(judge, helper, item.context_expr)
                if found and found[0] == outer[0]:
                    if put(judge, function, event, helper, found[1]) == outer[1]:
                        return event.line, f" (in {helper.title}, line {inner.lineno})"
    return None


def put(judge: Judge, function: Function, call: Event, helper: Function, key: str) -> str:
    """The key of a helper with the caller's arguments in it."""
    from ..events import arguments

    bound = arguments(helper, call.facts["called"])
    return re.sub(r"⟨(\w+)⟩", lambda m: function.key(bound[m[1]]) if m[1] in bound else m[0], key)


def for_threads_only(judge: Judge) -> Iterator[Hit]:
    """LH120."""
    module = judge.module
    if "multiprocessing" not in module.lower and "ProcessPool" not in module.text:
        return
    for function in judge.functions:
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None:
                continue
            worker = event.facts.get("helper")
            if worker is None or not module.dotted(called.node.func).endswith("Process"):
                worker = handed_to_pool(judge, function, called.node)
            worker = worker or method_of_process(judge, called.node)
            found = threads_lock(judge, worker) if worker is not None else None
            if worker is not None and found is not None:
                yield Hit(
                    worker,
                    found[0],
                    f"`{found[1]}` is a lock between threads, and {worker.title} runs in processes:"
                    " each process has its own copy, and none waits for another",
                    (there(event, "a process is started here"),),
                )
                return


OF_THREADS = ("threading.Lock", "threading.RLock", "asyncio.Lock")


def threads_lock(
    judge: Judge, worker: Function, *, deep: bool = True
) -> tuple[ast.AST, str] | None:
    """Where this function takes a lock between threads, and what that is called."""
    entered: list[tuple[ast.AST, ast.expr]] = [
        (stmt, item.context_expr)
        for stmt, _frames in worker.walked
        for item in (stmt.items if isinstance(stmt, ast.With | ast.AsyncWith) else ())
    ]
    entered += [(e.site, e.expr) for e in judge.own(worker) if e.kind == "acquire" and e.expr]
    for where, taken in entered:
        name = text_of(taken)
        given = judge.module.top.assigned.get(name, [])
        if worker.within is not None and name.startswith(("self.", "cls.")):
            given = [value for value, _ in worker.within.attributes.get(name.split(".")[1], [])]
        if any(
            isinstance(v, ast.Call) and judge.module.dotted(v.func) in OF_THREADS for v in given
        ):
            return where, name
    deep = deep and any(e.facts["name"] == "asyncio.run" for e in judge.own(worker))
    helpers = [e.facts["helper"] for e in judge.own(worker) if "helper" in e.facts] if deep else []
    found = (threads_lock(judge, each, deep=False) for each in helpers)
    return next(filter(None, found), None)


def method_of_process(judge: Judge, node: ast.Call) -> Function | None:
    """`Process(target=counter.bump)`: the one method of that name."""
    if not judge.module.dotted(node.func).endswith("Process"):
        return None
    target = next((k.value for k in node.keywords if k.arg == "target"), None)
    return judge.method_named(target.attr) if isinstance(target, ast.Attribute) else None


POOLS = ("ProcessPoolExecutor", "multiprocessing.Pool", "multiprocessing.pool.Pool")
HANDED = frozenset("submit map starmap imap imap_unordered apply apply_async map_async".split())


def handed_to_pool(judge: Judge, function: Function, node: ast.Call) -> Function | None:
    """The function of this module that a pool of processes is to run."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr in HANDED and node.args):
        return None
    owner = node.func.value
    made = function.values(owner.id) if isinstance(owner, ast.Name) else [owner]
    pools = (judge.module.dotted(v.func) for v in made if isinstance(v, ast.Call))
    if not any(name.endswith(POOLS) for name in pools):
        return None
    return judge.module.functions.get(text_of(node.args[0]))


def on_network(judge: Judge) -> Iterator[Hit]:
    """LH121."""
    for function in judge.functions:
        for event in judge.own(function):
            called = event.facts.get("called")
            if called is None or not called.args:
                continue
            name = event.facts.get("name", "")
            if not (MAKES_LOCK.search(name) or event.kind == "flock"):
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


def pid_too_early(judge: Judge) -> Iterator[Hit]:
    """LH122."""
    for function in judge.functions:
        for name, default in function.defaults.items():
            if "parent" in name or "main" in name:
                continue  # it asks later whether this is still the one
            if any(judge.module.dotted(c.func) == "os.getpid" for c in calls_in(default)):
                if judge.at_lock(function) or words.speaks_of_pid(name):
                    yield Hit(
                        function,
                        default,
                        f"`{name}` is read once, when {function.title} is defined: after a fork"
                        " every child writes the number of its parent",
                    )
    for group in judge.module.classes.values():
        if not words.speaks_of_lock(group.name):
            continue
        for name, given in group.attributes.items():
            for value, where in given:
                if where is None and isinstance(value, ast.Call):
                    if judge.module.dotted(value.func) == "os.getpid":
                        yield Hit(
                            judge.module.top,
                            value,
                            f"`{name}` is read once, when {group.name} is defined: after a fork"
                            " every child writes the number of its parent",
                        )


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in nodes(node) if isinstance(n, ast.Name)}
