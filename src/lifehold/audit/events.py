"""What a function does to locks, in order: creates, looks, unlinks, locks, asks a process, renews.

`Reader.events(function)` is what stands in the function; `Reader.whole(function)` puts what its
own helpers do in the place of the calls, with the arguments in the place of the parameters.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Any

from . import libraries
from .libraries import (
    CLIENT,
    Made,
    add_to_cache,
    argument,
    delete_key,
    make_lock,
    of_key,
    set_if_absent,
    set_key,
    truth_of,
)
from .model import (
    BY_KERNEL,
    OF_LIBRARY,
    Called,
    Class,
    Frames,
    Function,
    Module,
    by_kernel,
    calls_in,
    heads,
    maker_of,
    path_of,
    text_of,
)
from .words import acquires, stands_for

if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS = 3  # how deep helpers are opened
MOST = 300  # events of one function, with its helpers
PARAMETER = re.compile(r"⟨(\w+)⟩")
SELF = re.compile(r"\bself\.")
STARTS = re.compile(
    r"create_time|starttime|boot_id|\bbtime|start_ticks|/cmdline|\.cmdline\(|pidfd_|proc_start"
    r"|process_start|/stat\b|pid_start|NSpid"
)


# A start that is compared, or kept under a name for that; one that is only written down is none.
ASKS_START = re.compile(r"create_time.*(==|!=|<|>|\babs\()|(==|!=|<|>|\babs\(|\w+ = ).*create_time")


class Event:
    """One act. `key` names what it is done to; `site` is the place in the function that is read."""

    __slots__ = ("expr", "facts", "frames", "key", "kind", "lockish", "site", "via", "where")

    def __init__(
        self,
        kind: str,
        site: ast.AST,
        key: str,
        frames: Frames,
        where: Function,
        *,
        expr: ast.expr | None = None,
        lockish: bool = False,
        facts: dict[str, Any] | None = None,
        via: Function | None = None,
    ) -> None:
        self.kind = kind
        self.site = site
        self.key = key
        self.frames = frames
        self.where = where
        self.expr = expr
        self.lockish = lockish
        self.facts = facts or {}
        self.via = via

    @property
    def line(self) -> int:
        return getattr(self.site, "lineno", 1)

    @property
    def name(self) -> str:
        """The variable, path or key as people read it."""
        return shown(self.key)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key} line {self.line} {self.facts}>"


def shown(key: str) -> str:
    """A key as people read it: without the marks of parameters, not longer than a line bears."""
    plain = PARAMETER.sub(r"\1", key).removeprefix("self.")
    return plain if len(plain) <= 60 else plain[:57] + "..."


class Reader:
    """Reads events off the functions of one module; remembers what it has read."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._own: dict[Function, list[Event]] = {}
        self._whole: dict[tuple[Function, int], list[Event]] = {}
        self._handles: dict[tuple[object, str], list[Event]] = {}
        self.formed: set[tuple[Function, str]] = set()  # locks by their form (forms.py)

    def forget(self) -> None:
        """What functions do with their helpers is put together anew."""
        self._whole.clear()

    def events(self, function: Function) -> list[Event]:
        """What stands in the function itself, calls of its helpers among it."""
        if function not in self._own:
            found: list[Event] = []
            self._own[function] = found
            for stmt, frames in function.walked:
                for head in heads(stmt):
                    for call in calls_in(head):
                        self._read(function, call, frames, stmt, found)
        return self._own[function]

    def callee(self, function: Function, called: Called) -> Function | None:
        """The function of the same class or module that is called, if it is one."""
        name = text_of(called.func)
        first, _, rest = name.partition(".")
        if first in ("self", "cls") and rest and "." not in rest and function.within:
            return function.within.method(rest)
        if name and "." not in name:
            return self.module.functions.get(name)
        if first in self.module.classes and rest and "." not in rest:
            return self.module.classes[first].method(rest)
        return self._of_object(function, called.func) if rest else None

    def _of_object(self, function: Function, func: ast.expr) -> Function | None:
        """`guard.acquire`, where the guard is made of a class of this module."""
        owner = func.value if isinstance(func, ast.Attribute) else None
        made = maker_of(function, owner) if owner is not None else None
        group = self.module.classes.get(text_of(made.func)) if made is not None else None
        return group.method(func.attr) if group and isinstance(func, ast.Attribute) else None

    def whole(self, function: Function, levels: int = LEVELS) -> list[Event]:
        """What the function does, its helpers opened."""
        known = self._whole.get((function, levels))
        if known is not None:
            return known
        self._whole[function, levels] = []  # a circle of helpers ends here
        found: list[Event] = []
        for event in self.events(function):
            found.append(event)
            helper = event.facts.get("helper")
            if helper and helper is not function and levels > 0 and len(found) < MOST:
                for inner in self.whole(helper, levels - 1):
                    found.append(self._at_call(event, inner, helper))
        self._whole[function, levels] = found[:MOST]
        return self._whole[function, levels]

    def _at_call(self, call: Event, inner: Event, helper: Function) -> Event:
        bound = call.facts.get("bound")
        if bound is None:  # once for all that the helper does
            bound = call.facts["bound"] = arguments(helper, call.facts["called"])
        function = call.where

        def put(found: re.Match[str]) -> str:
            if helper.parent is function and found[1] not in helper.parameters:
                return found[0]  # the parameter of the function around
            given = bound.get(found[1]) or helper.defaults.get(found[1])
            return function.key(given) if given is not None else found[1]

        key = PARAMETER.sub(put, inner.key)
        owner = text_of(call.facts["called"].func).rpartition(".")[0]
        if owner and owner not in ("self", "cls") and owner not in self.module.classes:
            key = SELF.sub(f"{owner}.", key)
        lockish = inner.lockish or (function, key) in self.formed
        facts = dict(inner.facts)
        for name in PARAMETER.findall(inner.key):
            if name in bound and function.lockish(bound[name]):
                lockish = True
        if facts.get("mode_from") in bound:
            mode = bound[facts["mode_from"]]
            if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
                facts["mode"] = mode.value
                facts["truncates"] = "w" in mode.value
        for part in ("handle", "value_key"):
            if part in facts:
                facts[part] = PARAMETER.sub(put, facts[part])
        return Event(
            inner.kind,
            call.site,
            key,
            (*call.frames, *inner.frames),
            function,
            expr=inner.expr,
            lockish=lockish,
            facts={**facts, "inside": inner},
            via=helper,
        )

    def _read(
        self, function: Function, node: ast.Call, frames: Frames, stmt: ast.stmt, out: list[Event]
    ) -> None:
        called = started(self.module, self.module.called(node))
        name = self.module.dotted(called.func)
        helper = self.callee(function, called)
        if helper is not None:
            known = {"helper": helper, "called": called, "statement": stmt, "name": name}
            out.append(Event("call", node, name, frames, function, facts=known))
            return
        if name.startswith("aiofiles.os"):
            name = name.replace("aiofiles.ospath", "os.path").removeprefix("aiofiles.")
        wrapped = stands_for(name)
        if wrapped:
            name, called = wrapped, unwrapped(called, wrapped)
        reader: Callable[[Function, Called, str], Made] | None = NAMED.get(name)
        method = called.func.attr if isinstance(called.func, ast.Attribute) else ""
        if reader is None and method:
            reader = METHODS.get(method)
        if reader is None and name.rpartition(".")[2] in TAILS:
            reader = TAILS[name.rpartition(".")[2]]
        made = reader(function, called, name) if reader else None
        kind, target, found = made or ("other", None, {})
        facts: dict[str, Any] = {**found}
        facts["called"] = called
        facts["statement"] = stmt
        facts["name"] = name or method
        event = Event(
            kind,
            node,
            function.key(target) if target is not None else name,
            frames,
            function,
            expr=target,
            lockish=target is not None and function.lockish(target),
            facts=facts,
        )
        out.append(event)
        if kind in ("open", "create", "write", "read"):
            self._keep_handle(function, event, stmt)
        if kind == "at_exit":
            self._read_late(event, called, out)

    def _read_late(self, event: Event, called: Called, out: list[Event]) -> None:
        """What `atexit.register(os.unlink, path)` removes."""
        function, late = event.where, removed_late(self.module, called)
        if late is not None:
            named = function.lockish(late)
            made = Event("late_unlink", event.site, function.key(late), event.frames, function)
            made.expr, made.lockish, made.facts = late, named, event.facts
            out.append(made)

    def _keep_handle(self, function: Function, event: Event, stmt: ast.stmt) -> None:
        """Under which names is this open file known?"""
        for target in bound_names(stmt, event.site):
            if isinstance(target, ast.Name):
                event.facts["handle"] = target.id
                self._handles.setdefault((function, target.id), []).append(event)
            elif isinstance(target, ast.Attribute) and text_of(target).startswith("self."):
                event.facts["handle"] = text_of(target)
                self._handles.setdefault((function.within, text_of(target)), []).append(event)

    def opened(self, function: Function, handle: ast.expr | None) -> list[Event]:
        """The calls that opened what this handle leads to."""
        node = handle
        for _ in range(8):
            while isinstance(node, ast.Call):
                func = node.func
                if isinstance(func, ast.Attribute) and func.attr == "fileno":
                    node = func.value
                elif node.args and self.module.dotted(func) == "os.fdopen":
                    node = node.args[0]
                else:
                    return [e for e in self.events(function) if e.site is node and e.expr]
            name = text_of(node)
            for scope in (function, function.parent):
                if scope and (scope, name) in self._handles:
                    return self._handles[scope, name]
            if function.within and name.startswith("self."):
                self._read_class(function.within)
                found = self._handles.get((function.within, name), [])
                if found:
                    return found
                given = function.within.attributes.get(name[5:], [])
                inner = [
                    value for value, _ in given if text_of(value) or isinstance(value, ast.Call)
                ]
                if len(inner) != 1 or inner[0] is node:
                    return []
                node, function = (
                    inner[0],
                    given[[v for v, _ in given].index(inner[0])][1] or function,
                )
                continue
            value = function.only_value(name) if name and "." not in name else None
            if value is None:
                return []
            node = value
        return []

    def _read_class(self, group: Class) -> None:
        for method in group.methods.values():
            self.events(method)


def started(module: Module, called: Called) -> Called:
    """`Process(target=f, args=(x,))` calls f with x."""
    target = called.keywords.get("target")
    if target is None or module.dotted(called.func).rpartition(".")[2] not in ("Process", "Thread"):
        return called
    if text_of(target) not in module.functions:
        return called
    given = called.keywords.get("args")
    return Called(called.node, target, given.elts if isinstance(given, ast.Tuple) else [], {})


def removed_late(module: Module, called: Called) -> ast.expr | None:
    """The path in `atexit.register(os.unlink, path)`, `atexit.register(path.unlink)`."""
    for place, each in enumerate(called.args):
        name = module.dotted(each)
        if name in ("os.unlink", "os.remove", "os.rmdir", "shutil.rmtree"):
            return called.args[place + 1] if len(called.args) > place + 1 else None
        if isinstance(each, ast.Attribute) and each.attr in ("unlink", "rmdir"):
            return each.value
        if isinstance(each, ast.Lambda) and isinstance(each.body, ast.Call):
            inner = removed_late(
                module, Called(called.node, each.body.func, [each.body.func, *each.body.args], {})
            )
            if inner is not None:
                return inner
    return None


def unwrapped(called: Called, name: str) -> Called:
    """The call of a wrapper as that of what it stands for: `redis.setnx` gets a client to be of."""
    if not name.startswith("redis."):
        return called
    client = ast.Attribute(ast.Name(CLIENT, ast.Load()), name.removeprefix("redis."), ast.Load())
    return Called(called.node, client, called.args, called.keywords)


def bound_names(stmt: ast.stmt, call: ast.AST) -> list[ast.expr]:
    """The targets that this statement binds to the result of the call, also through a wrapper."""
    if isinstance(stmt, ast.Assign):
        return list(stmt.targets) if _holds(stmt.value, call) else []
    if isinstance(stmt, ast.AnnAssign) and stmt.value is not None:
        return [stmt.target] if _holds(stmt.value, call) else []
    if isinstance(stmt, ast.With | ast.AsyncWith):
        held = [item for item in stmt.items if _holds(item.context_expr, call)]
        return [item.optional_vars for item in held if item.optional_vars]
    return []


def _holds(value: ast.AST, call: ast.AST) -> bool:
    """Is the value the call itself, or one that wraps it: `os.fdopen(os.open(...))`?"""
    for _ in range(4):
        if value is call:
            return True
        if isinstance(value, ast.Call) and value.args:
            value = value.args[0]
        elif isinstance(value, ast.Await):
            value = value.value
        else:
            return False
    return False


def arguments(helper: Function, called: Called) -> dict[str, ast.expr]:
    """Which argument stands for which parameter."""
    names = list(helper.parameters)
    if (
        helper.within
        and names[:1] in (["self"], ["cls"])
        and isinstance(called.func, ast.Attribute)
    ):
        names = names[1:]
    bound = dict(zip(names, called.args, strict=False))
    bound.update({name: value for name, value in called.keywords.items() if name in names})
    return bound


# --- readers: a call is an event of a kind, done to an expression, with facts -------------------


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _open(function: Function, called: Called, name: str) -> Made:
    path, mode = argument(called, 0, "file"), argument(called, 1, "mode")
    return _opened(function, path, mode)


def _opened(function: Function, path: ast.expr | None, mode: ast.expr | None) -> Made:
    if path is None:
        return None
    text = "r" if mode is None else _text(mode)
    facts: dict[str, Any] = {"mode": text or "", "truncates": "w" in (text or "")}
    if text is None and isinstance(mode, ast.Name) and function.is_parameter(mode.id):
        facts["mode_from"] = mode.id
    if text is None:
        return "open", path, facts
    if "x" in text:
        return "create", path, {**facts, "exclusive": True}
    if "w" in text or "a" in text:
        return "write", path, facts
    return ("read" if "+" not in text else "open"), path, facts


def _path_open(function: Function, called: Called, name: str) -> Made:
    if not isinstance(called.func, ast.Attribute) or name in ("os.open", "io.open"):
        return None
    mode = argument(called, 0, "mode")
    if mode is not None and _text(mode) is None and not isinstance(mode, ast.Name):
        return None
    return _opened(function, called.func.value, mode)


def _flags(function: Function, node: ast.expr | None) -> set[str]:
    return {text for text in function.texts(node) if text.startswith("O_")}


def _os_open(function: Function, called: Called, name: str) -> Made:
    if not called.args:
        return None
    flags = _flags(function, argument(called, 1, "flags"))
    facts: dict[str, Any] = {"truncates": "O_TRUNC" in flags, "number": True, "mode": ""}
    facts["nofollow"] = "O_NOFOLLOW" in flags
    if {"O_CREAT", "O_EXCL"} <= flags:
        return "create", called.args[0], {**facts, "exclusive": True}
    if "O_CREAT" in flags:
        return ("write" if "O_TRUNC" in flags else "open"), called.args[0], facts
    return "open", called.args[0], facts


def _first(kind: str) -> Callable[[Function, Called, str], Made]:
    def read(function: Function, called: Called, name: str) -> Made:
        return (kind, called.args[0], {}) if called.args else None

    return read


def _second(kind: str, **facts: Any) -> Callable[[Function, Called, str], Made]:
    def read(function: Function, called: Called, name: str) -> Made:
        if len(called.args) < 2:
            return None
        return kind, called.args[1], {**facts, "source": called.args[0]}

    return read


def _of_path(kind: str) -> Callable[[Function, Called, str], Made]:
    def read(function: Function, called: Called, name: str) -> Made:
        owner = called.func.value if isinstance(called.func, ast.Attribute) else None
        return (kind, owner, {}) if owner is not None else None

    return read


def _mkdir(function: Function, called: Called, name: str) -> Made:
    if name in ("os.mkdir", "os.makedirs"):
        path = argument(called, 0, "path" if name == "os.mkdir" else "name")
        made = name == "os.mkdir" or (acquires(function.name) and function.lockish(path))
        if truth_of(called.keywords.get("exist_ok")):
            return ("ensure", path, {"folder": True}) if path is not None else None
        if "exist_ok" in called.keywords or len(called.args) > 2 or not made:
            return ("other", None, {})
    elif isinstance(called.func, ast.Attribute):
        path = called.func.value
        if truth_of(called.keywords.get("exist_ok")) and called.keywords:
            return "ensure", path, {"folder": True}
        if truth_of(called.keywords.get("exist_ok")) is not None and called.keywords:
            return ("other", None, {})
    else:
        return None
    return ("create", path, {"exclusive": True, "folder": True}) if path is not None else None


def _touch(function: Function, called: Called, name: str) -> Made:
    if not isinstance(called.func, ast.Attribute):
        return None
    if truth_of(called.keywords.get("exist_ok")) is False:
        return "create", called.func.value, {"exclusive": True}
    return "write", called.func.value, {"touch": True}


def _moved(function: Function, called: Called, name: str) -> Made:
    """`Path.rename(target)`: the target appears, the source goes."""
    if len(called.args) == 1 and isinstance(called.func, ast.Attribute):
        return "write", called.args[0], {"rename": True, "source": called.func.value}
    return None


def _flock(function: Function, called: Called, name: str) -> Made:
    handle, how = argument(called, 0, "fd"), argument(called, 1, "operation")
    if handle is None:
        return None
    flags = {text for text in function.texts(how) if text.startswith(("LOCK_", "LK_"))}
    parts = {piece for text in flags for piece in text.split("_")}
    if name.startswith("portalocker"):
        named = {"EXCLUSIVE": "EX", "SHARED": "SH", "NON_BLOCKING": "NB", "UNBLOCK": "UN"}
        parts |= {named[text] for text in function.texts(how) if text in named}
    facts = {
        "handle_expr": handle,
        "nonblocking": "NB" in parts or any("NBLCK" in f or "NBRLCK" in f for f in flags),
        "shared": "SH" in parts and "EX" not in parts,
        "posix": name.endswith("lockf"),
        "windows": name.startswith("msvcrt"),
        "from_parameter": not parts,
    }
    unlocks = (
        name.endswith(".unlock")
        or ("UN" in parts and not parts & {"EX", "SH"})
        or "LK_UNLCK" in flags
    )
    return ("unlock" if unlocks else "flock"), handle, facts


def _library_lock(function: Function, called: Called, name: str) -> Made:
    """`FileLock(path)`, and what else locks a file by the kernel."""
    path = path_of(called.node) if by_kernel(function.module, name) else None
    if path is None or not (OF_LIBRARY.search(name) or function.lockish(path)):
        return None  # a class of the project may lock a companion of what it is given
    return "library_lock", path, {}


def _run(function: Function, called: Called, name: str) -> Made:
    path = libraries.run_under_flock(function, called)
    if path is not None:
        return "library_lock", path, {}
    number = libraries.asked_by_command(function, called)
    return ("alive", number, {}) if number is not None else None


def _process(function: Function, called: Called, name: str) -> Made:
    """`psutil.Process(pid)`, which raises for a number that nobody has."""
    if not called.args or not libraries.asks_number_alone(function.module):
        return None
    return "alive", called.args[0], {}


def _take(key_of: Callable[[Function, Called], ast.expr | None]) -> Callable[..., Made]:
    """A request to a store that gives a key to one alone."""

    def read(function: Function, called: Called, name: str) -> Made:
        key = key_of(function, called)
        return ("take", key, {}) if key is not None else None

    return read


def _kill(function: Function, called: Called, name: str) -> Made:
    if len(called.args) < 2:
        return None
    signal = called.args[1]
    zero = isinstance(signal, ast.Constant) and signal.value == 0
    return ("alive" if zero else "signal"), called.args[0], {"kill": True}


def _exists(function: Function, called: Called, name: str) -> Made:
    path = called.args[0] if called.args else None
    if path is None:
        return None
    proc = proc_of(function, path)
    return ("alive", proc, {"proc": True}) if proc is not None else ("exists", path, {})


def _path_exists(function: Function, called: Called, name: str) -> Made:
    owner = called.func.value if isinstance(called.func, ast.Attribute) else None
    if owner is None or called.args:
        return _redis_exists(function, called, name)
    proc = proc_of(function, owner)
    return ("alive", proc, {"proc": True}) if proc is not None else ("exists", owner, {})


def proc_of(function: Function, path: ast.expr) -> ast.expr | None:
    """The pid in a path such as `f"/proc/{pid}"`."""
    text = function.key(path)
    if not text.startswith("/proc/") or re.match(r"/proc/(self|sys|net|mounts|locks)", text):
        return None
    parts = [n for n in ast.walk(path) if isinstance(n, ast.Name | ast.Attribute)]
    named = [n for n in parts if "pid" in text_of(n).lower()]
    return named[0] if named else path


def _redis_exists(function: Function, called: Called, name: str) -> Made:
    return of_key("key_exists")(function, called, name)


def _sleep(function: Function, called: Called, name: str) -> Made:
    return "sleep", None, {"seconds": called.args[0] if called.args else None}


def _acquire(function: Function, called: Called, name: str) -> Made:
    owner = called.func.value if isinstance(called.func, ast.Attribute) else None
    return ("acquire", owner, {}) if owner is not None else None


def _release(function: Function, called: Called, name: str) -> Made:
    owner = called.func.value if isinstance(called.func, ast.Attribute) else None
    return ("release", owner, {}) if owner is not None else None


def _unlink(function: Function, called: Called, name: str) -> Made:
    """`Path.unlink()`, or UNLINK of Redis, which names its key."""
    if called.args:
        return delete_key(function, called, name)
    return _of_path("unlink")(function, called, name)


NAMED: dict[str, Callable[[Function, Called, str], Made]] = {
    "open": _open,
    "io.open": _open,
    "file": _open,
    "codecs.open": _open,
    "aiofiles.open": _open,
    "os.open": _os_open,
    "os.unlink": _first("unlink"),
    "os.remove": _first("unlink"),
    "os.rmdir": _first("unlink"),
    "shutil.rmtree": _first("unlink"),
    "os.removedirs": _first("unlink"),
    "os.path.exists": _exists,
    "os.path.isfile": _exists,
    "os.path.isdir": _exists,
    "os.path.lexists": _exists,
    "os.access": _exists,
    "os.path.getmtime": _first("age"),
    "os.path.getctime": _first("age"),
    "os.stat": _first("stat"),
    "os.lstat": _first("stat"),
    "os.fstat": _first("fstat"),
    "os.path.getsize": _first("stat"),
    "os.utime": _first("touch"),
    "os.link": _second("create", exclusive=True, link=True),
    "os.symlink": _second("create", exclusive=True, symlink=True),
    "os.rename": _second("write", rename=True),
    "os.replace": _second("write", rename=True),
    "shutil.move": _second("write", rename=True),
    "os.mkdir": _mkdir,
    "os.makedirs": _mkdir,
    "fcntl.flock": _flock,
    "fcntl.lockf": _flock,
    "msvcrt.locking": _flock,
    "portalocker.lock": _flock,
    "portalocker.unlock": _flock,
    "django.core.files.locks.lock": _flock,
    "django.core.files.locks.unlock": _flock,
    **dict.fromkeys(libraries.RUNS, _run),
    "os.kill": _kill,
    "psutil.pid_exists": _first("alive"),
    "psutil.pids": lambda f, c, n: ("alive", None, {}),
    "psutil.Process": _process,
    "os.system": _run,
    "os.popen": _run,
    "weakref.finalize": _second("at_exit"),
    "time.sleep": _sleep,
    "asyncio.sleep": _sleep,
    "trio.sleep": _sleep,
    "anyio.sleep": _sleep,
    "gevent.sleep": _sleep,
    "eventlet.sleep": _sleep,
    "sleep": _sleep,
    "samestat": _first("same"),
    "os.path.samestat": _first("same"),
    "os.path.samefile": _first("same"),
    "os.path.sameopenfile": _first("same"),
    "os.readlink": _first("read"),
    "atexit.register": _first("at_exit"),
    "signal.signal": _second("at_signal"),
    "os.fork": lambda f, c, n: ("fork", None, {}),
    "daemon.DaemonContext": lambda f, c, n: ("fork", None, {}),
}
METHODS: dict[str, Callable[[Function, Called, str], Made]] = {
    "exists": _path_exists,
    "is_file": _path_exists,
    "is_dir": _path_exists,
    "unlink": _unlink,
    "rmdir": _of_path("unlink"),
    "touch": _touch,
    "write_text": _of_path("write"),
    "write_bytes": _of_path("write"),
    "read_text": _of_path("read"),
    "read_bytes": _of_path("read"),
    "stat": _of_path("stat"),
    "lstat": _of_path("stat"),
    "mkdir": _mkdir,
    "open": _path_open,
    "rename": _moved,
    "replace": _moved,
    "setnx": set_if_absent,
    "set": set_key,
    "setex": of_key("redis_set"),
    "psetex": of_key("redis_set"),
    "get": of_key("redis_get"),
    "delete": delete_key,
    "expire": of_key("redis_expire"),
    "pexpire": of_key("redis_expire"),
    "expireat": of_key("redis_expire"),
    "persist": of_key("redis_expire"),
    "eval": of_key("script"),
    "evalsha": of_key("script"),
    "register_script": of_key("script"),
    "watch": of_key("watch"),
    "add": add_to_cache,
    "lock": make_lock,
    "acquire": _acquire,
    "release": _release,
    **dict.fromkeys(("execute", "fetchval", "scalar", "fetchrow"), _take(libraries.taken_row)),
    "transaction": _take(lambda f, c: libraries.taken_in_transaction(c)),
    "put_if_not_exists": _take(lambda f, c: c.args[0] if c.args else None),
    "put": _take(lambda f, c: libraries.taken_for_session(c)),
    "create": _take(libraries.taken_node),
    "insert_one": _take(libraries.taken_document),
    "put_item": _take(lambda f, c: libraries.taken_item(c)),
}
TAILS: dict[str, Callable[[Function, Called, str], Made]] = {
    "pid_exists": _first("alive"),
    "DaemonContext": lambda f, c, n: ("fork", None, {}),
    "daemonize": lambda f, c, n: ("fork", None, {}),
    **dict.fromkeys(("Lock", "RLock", "LockFile", *BY_KERNEL), _library_lock),
}


WRAPPED = frozenset(NAMED) | {
    f"redis.{name}" for name in ("setnx", "set", "setex", "get", "delete", "expire", "pexpire")
}  # what a wrapper of a project may stand for


@functools.lru_cache(4)
def compares_start(module: Module) -> bool:
    """Does the module look at more of a process than its number?"""
    found = STARTS.search(module.text)
    if found is None or found[0] != "create_time":
        return found is not None
    return any(ASKS_START.search(line) for line in module.text.splitlines()) or bool(
        STARTS.search(module.text.replace("create_time", ""))
    )


@functools.lru_cache(4)
def compares_inode(module: Module) -> bool:
    """Does the module compare the inode that it locked with the one under the path?"""
    text = module.text
    return "st_ino" in text or "samestat" in text or "samefile" in text or "sameopenfile" in text
