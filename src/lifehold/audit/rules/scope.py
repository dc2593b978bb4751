"""Locks that do not reach as far as the work: of one object, of one process, of a parent."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .. import words
from ..events import arguments
from ..model import calls_in, nodes, text_of
from ..rule import Hit, there

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..events import Event
    from ..judge import Judge
    from ..model import Function


def second_instance(judge: Judge) -> Iterator[Hit]:
    """LH119."""
    for function in judge.functions:
        held_here = [
            (stmt, frames)
            for stmt, frames in function.walked
            if isinstance(stmt, ast.With | ast.AsyncWith)
        ]
        for stmt, _frames in held_here:
            for item in stmt.items:
                again = entered_again(judge, function, stmt, item.context_expr)
                if again is not None:
                    yield again
                    return
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


Entered = tuple[str, tuple[str, ...]]


def entered(judge: Judge, function: Function, node: ast.AST) -> Entered | None:
    """The helper that `with helper(path):` locks by, and with what: each time by a new object."""
    if not isinstance(node, ast.Call):
        return None
    called = judge.module.called(node)
    group = judge.module.classes.get(text_of(called.func))
    if group is not None:
        enter = group.methods.get("__enter__")
        if enter is None or not waits_alone(judge, enter):
            return None
        values = [*called.args, *called.keywords.values()]
        return group.name, tuple([function.key(each) for each in values])
    helper = judge.reader.callee(function, called)
    if helper is None:
        return None
    made = instance(judge, helper, helper.answer) if helper.answer is not None else None
    if made is None and not (helper.manages_context and waits_alone(judge, helper)):
        return None
    bound = arguments(helper, called)
    given = [
        function.key(bound.get(name) or helper.defaults.get(name))
        for name in helper.parameters
        if name not in ("self", "cls", "timeout", "blocking", "wait")
    ]
    return helper.title, tuple(given)


def waits_alone(judge: Judge, helper: Function) -> bool:
    """Does it lock a file that it opens anew, for itself alone?"""
    locks = [e for e in judge.own(helper) if e.kind == "flock"]
    alone = [e for e in locks if not e.facts["shared"] and not e.facts["windows"]]
    opened = [o for e in alone for o in judge.reader.opened(helper, e.facts["handle_expr"])]
    return any(o.where is helper for o in opened)


def entered_again(
    judge: Judge, function: Function, stmt: ast.With | ast.AsyncWith, node: ast.expr
) -> Hit | None:
    """What is locked by `with helper():`, and once more by what is called in its block."""
    outer = entered(judge, function, node)
    if outer is None:
        return None
    for inner, frames in function.walked:
        if isinstance(inner, ast.With | ast.AsyncWith) and any(f.node is stmt for f in frames):
            if any(entered(judge, function, i.context_expr) == outer for i in inner.items):
                return locked_twice(function, stmt, outer, inner.lineno, "")
    for event in judge.own(function):
        helper = event.facts.get("helper")
        if helper is None or helper is function or not within(event, stmt):
            continue
        for inner, _frames in helper.walked:
            if not isinstance(inner, ast.With | ast.AsyncWith):
                continue
            for item in inner.items:
                found = entered(judge, helper, item.context_expr)
                if found is None or found[0] != outer[0]:
                    continue
                keys = tuple(put(judge, function, event, helper, key) for key in found[1])
                if keys == outer[1]:
                    where = f" (in {helper.title}, line {inner.lineno})"
                    return locked_twice(function, stmt, outer, event.line, where)
    return None


def within(event: Event, stmt: ast.AST) -> bool:
    return any(f.node is stmt for f in event.frames)


def locked_twice(function: Function, stmt: ast.AST, outer: Entered, line: int, where: str) -> Hit:
    what = f"{outer[0]}({', '.join(map(shown, outer[1]))})"
    return Hit(
        function,
        stmt,
        f"`{what}` is locked here, and line {line} locks it again by another object{where}: this"
        " thread waits for itself",
    )


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
    if not (known or name == "portalocker.Lock") or "Singleton" in last:
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
    bound = arguments(helper, call.facts["called"])
    return re.sub(r"⟨(\w+)⟩", lambda m: function.key(bound[m[1]]) if m[1] in bound else m[0], key)


def for_threads_only(judge: Judge) -> Iterator[Hit]:
    """LH120."""
    module = judge.module
    yield from shared_by_workers(judge)
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


# What says that this module is run by several processes at once.
WORKERS = re.compile(
    r"gunicorn|\bworkers?\s*=\s*([2-9]|\d\d)|--workers|worker_concurrency|\bprefork|\bpre_fork"
    r"|uwsgi|processes\s*=\s*[2-9]|-w \d",
)
REPLICAS = re.compile(
    r"\breplicas?\s*[=:]\s*([2-9]|\d\d)|\b(every|each|all|several|many|one) (of the )?"
    r"(replicas?|pods?|gunicorn workers?|uvicorn workers?)\b"
    r"|\b\d+ replicas\b|\bother (replicas|pods|hosts|nodes)\b|\bevery (node|host)\b"
    r"|\b(in|of) the cluster\b|\bacross (the )?(hosts|pods|nodes|replicas|workers)\b",
    re.IGNORECASE,
)
SERVES = re.compile(
    r"^(fastapi|flask|django|starlette|aiohttp|sanic|falcon|bottle|quart|litestar|tornado)\b"
)
TASKS = re.compile(r"(^|\.)(task|shared_task|actor|periodic_task|db_task|job)$")
QUEUES = re.compile(r"^(celery|dramatiq|huey|rq|procrastinate|taskiq)\b")
OF_SERVICES = frozenset("put_object upload_file upload_fileobj put_item update_item".split())
SHARED_WORK = frozenset(
    "execute executemany commit post put patch check_call check_output run write_text write_bytes"
    " to_csv dump system rename replace".split()
)


def shared_by_workers(judge: Judge) -> Iterator[Hit]:
    """A lock between threads around files or rows, in a module that several processes run."""
    module = judge.module
    queued = any(QUEUES.match(name) for name in module.imports.values()) or any(
        QUEUES.match(text) for text in re.findall(r"^import (\w+)", module.text, re.MULTILINE)
    )
    if not any(name in module.text for name in ("Lock(", "Semaphore(")):
        return
    serves = any(SERVES.match(name) for name in module.imports.values())
    many = (serves and WORKERS.search(module.text)) or REPLICAS.search(module.text)
    if not (queued or many):
        return
    for function in judge.functions:
        task = any(map(TASKS.search, function.decorators))
        if not (many or task):
            continue
        found = threads_lock(judge, function, deep=False)
        if found is None or "." in found[1] or not works_outside(judge, function, found[0]):
            continue
        why = "tasks of several workers" if task else "several workers"
        yield Hit(
            function,
            found[0],
            f"`{found[1]}` is a lock between threads, and {function.title} is run by {why}: each"
            " process has its own copy, and none waits for another",
        )
        return


def works_outside(judge: Judge, function: Function, block: ast.AST) -> bool:
    """Is a file, a table or a service changed under this lock?"""
    if isinstance(block, ast.With | ast.AsyncWith):
        inside = [n for s in block.body for n in ast.walk(s)]
        if any(isinstance(n, ast.Attribute) and n.attr in OF_SERVICES for n in inside):
            return True
    for event in judge.whole(function):
        if isinstance(block, ast.With | ast.AsyncWith) and not within(event, block):
            continue
        if event.kind in ("write", "create", "unlink", "ensure", "exists"):
            return True
        if event.kind == "open" and "+" in str(event.facts.get("mode", "")):
            return True
        called = event.facts.get("called")
        if called is not None and event.kind == "other":
            last = getattr(called.func, "attr", "")
            if last in SHARED_WORK and isinstance(called.func, ast.Attribute):
                return True
    return False


MADE_ANEW = ("multiprocessing.Lock", "multiprocessing.RLock")
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
        anew = worker.only_value(name)
        if isinstance(anew, ast.Call) and judge.module.dotted(anew.func) in MADE_ANEW:
            return where, name
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
    yield from pid_of_module(judge)
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


FORKS = re.compile(
    r"os\.fork\(|multiprocessing|\bProcess\(|ProcessPool|daemoniz|DaemonContext|gunicorn|prefork"
    r"|forkserver"
)


def pid_of_module(judge: Judge) -> Iterator[Hit]:
    """`ME = os.getpid()` at the top of a module that forks, written into a lock afterwards."""
    if "getpid" not in judge.module.text or not FORKS.search(judge.module.text):
        return
    top = judge.module.top
    for name, given in top.assigned.items():
        made = [v for v in given if isinstance(v, ast.AST) and has_pid(judge, v)]
        if not made:
            continue
        for function in judge.functions:
            if function is top or not judge.at_lock(function):
                continue
            used = [n for s in function.body for n in nodes(s)]
            if any(isinstance(n, ast.Name) and n.id == name for n in used):
                yield Hit(
                    top,
                    made[0],
                    f"`{name}` is read once, when the module is imported: after a fork every child"
                    f" writes the number of its parent (in {function.title})",
                )
                break


def has_pid(judge: Judge, node: ast.AST) -> bool:
    return any(judge.module.dotted(c.func) == "os.getpid" for c in calls_in(node))
