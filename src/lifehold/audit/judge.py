"""What the rules ask of a module: who guards this act, what is known here, whose lock is it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from . import words
from .blocks import is_constant, returned
from .events import Event, Reader
from .model import (
    Class,
    Frame,
    Function,
    Module,
    by_kernel,
    maker_of,
    nodes,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CLOCK = re.compile(r"\b(time\.time|time|now|utcnow|monotonic|today|getctime)\b")
AGED = re.compile(
    r"mtime|ctime|\bage\b|(^|_)age(_|$)|^ts$|_ts$|created"
    r"|timestamp|acquired_at|started|locked_at|expire|expir|heartbeat"
    r"|stale|_at$|lock_time|^at$|^since$|^taken$|^when$",
    re.IGNORECASE,
)
# A guard by one of these says that we hold the lock: a flag, a handle, a pid or token compared.
MINE = re.compile(
    r"acquired|by_me|by_us|_mine|owns|i_am|is_locked|islocked|locked|held|owned"
    r"|is_own|owner|have_lock|has_lock|got_lock|mine"
    r"|token|nonce|getpid|_pid\b|\bpid\b|uuid|ident|handle|_fd\b|\bfd\b|fileno|lock_file$|lockfile$"
    r"|_fp\b|\bfp\b|lock_fd|_lock\b|lock_id|lock_value|is_leader|is_master|created",
    re.IGNORECASE,
)
FLAG = re.compile(r"acquired|locked|held|owned|^mine$|is_mine|have_lock|got_lock", re.IGNORECASE)
OURS = re.compile(r"^self\.\w*(pid|owner|token|ident|id|uuid|nonce|session)$", re.IGNORECASE)
BROAD = frozenset(
    "OSError IOError EnvironmentError os.error Exception BaseException select.error".split()
)
HELD = frozenset(
    "FileExistsError BlockingIOError OSError IOError EnvironmentError PermissionError Exception"
    " BaseException".split()
)


class Judge:
    """A module with its events, and what follows from them."""

    def __init__(self, module: Module, mounts: tuple[str, ...] = ()) -> None:
        self.module = module
        self.reader = Reader(module)
        self.mounts = mounts
        self.functions = module.every
        self._callers: dict[Function, list[Function]] | None = None
        self._unit: dict[object, list[Event]] = {}
        self._members: dict[Class | None, list[Function]] = {}
        self._locked: dict[Class | None, list[tuple[str, Event, Event]]] = {}
        self._flocked: dict[Class | None, dict[str, Event]] = {}
        self._alone: dict[Class | None, set[str]] = {}
        self._kinds: frozenset[str] | None = None
        self._by_key: dict[str, list[Event]] = {}
        self._by_unit: dict[object, dict[str, list[Event]]] = {}
        self._registered: dict[str, list[Event]] | None = None
        self.asked_owner: dict[object, bool] = {}  # of a class, or of the functions in none

    def end(self) -> None:
        """Take the circles apart: then all of it goes at once, and the collector has no work."""
        module = self.module
        for function in module.every:
            vars(function).clear()
        for group in list(module.classes.values()):
            vars(group).clear()
        for each in (self.reader, module, self):
            vars(each).clear()

    def own(self, function: Function) -> list[Event]:
        return self.reader.events(function)

    def whole(self, function: Function) -> list[Event]:
        return self.reader.whole(function)

    def members(self, group: Class | None) -> list[Function]:
        """The functions of a class, or those that stand in none."""
        if not self._members:
            for function in self.functions:
                self._members.setdefault(function.within, []).append(function)
        return self._members.get(group, [])

    def unit(self, function: Function) -> list[Event]:
        """What the class of the function does, or the functions beside it that stand in none."""
        group: object = function.within or self.module
        if group not in self._unit:
            members = list(self.members(function.within))
            if function.within:
                chain = [p for p in map(self.module.classes.get, function.within.parents) if p]
                members += [f for parent in chain for f in parent.methods.values()]
            self._unit[group] = [event for f in members for event in self.own(f)]
        return self._unit[group]

    def registered(self, name: str) -> list[Event]:
        """Where a function of this name is asked to run at the end, or at a signal."""
        if self._registered is None:
            self._registered = {}
            for event in self.everything():
                if event.kind in ("at_exit", "at_signal"):
                    self._registered.setdefault(text_of(event.expr), []).append(event)
        return self._registered.get(name, []) if name else []

    def done_by_unit(self, function: Function, key: str) -> list[Event]:
        """What the unit of this function does to one path or key."""
        found = self._by_unit.get(function.within)
        if found is None:
            found = self._by_unit[function.within] = {}
            for event in self.unit(function):
                found.setdefault(event.key, []).append(event)
        return found.get(key, [])

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of all acts in the module: a rule about none of them is not asked."""
        if self._kinds is None:
            lua = {"lua"} if "redis.call" in self.module.text else set()
            self._kinds = frozenset(event.kind for event in self.everything()) | lua
        return self._kinds

    def done_to(self, key: str) -> list[Event]:
        """All that the module does to one path or key."""
        if not self._by_key:
            for event in self.everything():
                self._by_key.setdefault(event.key, []).append(event)
        return self._by_key.get(key, [])

    def everything(self) -> Iterator[Event]:
        for function in self.functions:
            yield from self.own(function)

    def callers(self, function: Function) -> list[Function]:
        """Who calls this helper, in the same module."""
        if self._callers is None:
            self._callers = {}
            for each in self.functions:
                for event in self.own(each):
                    helper = event.facts.get("helper")
                    if helper is not None and each not in self._callers.setdefault(helper, []):
                        self._callers[helper].append(each)
        return self._callers.get(function, [])

    def at_lock(self, function: Function) -> bool:
        """Is this function part of a lock: by its name, its class, its paths, or who calls it?"""
        if self.named_lock(function):
            return True
        if any(event.lockish and event.kind != "other" for event in self.own(function)):
            return True
        for caller in self.callers(function):
            if self.named_lock(caller):
                return True
            if any(e.lockish and e.kind in FILE_ACTS for e in self.own(caller)):
                return True
        return False

    def named_lock(self, function: Function) -> bool:
        owner = function.within.name if function.within else ""
        return words.speaks_of_lock(function.name) or words.speaks_of_lock(owner)

    # --- guards --------------------------------------------------------------------------------

    def tests(self, event: Event) -> list[tuple[Frame, ast.expr]]:
        """The tests that this event stands under."""
        found: list[tuple[Frame, ast.expr]] = []
        for frame in event.frames:
            if isinstance(frame.node, ast.If | ast.While) and not (
                frame.kind == "while" and frame.part == "else"
            ):
                found.append((frame, frame.node.test))
            elif frame.subject is not None:
                asked = (frame.subject, getattr(frame.node, "guard", None))
                found += [(frame, each) for each in asked if each is not None]
        return found

    def says(self, function: Function, node: ast.AST, levels: int = 2) -> set[str]:
        """Every name and text that an expression rests on, those of called helpers among them."""
        found = set(function.texts(node))
        for call in self._calls_behind(function, node):
            found |= {function.module.dotted(call.func)}
            helper = self.reader.callee(function, self.module.called(call))
            if helper is None and isinstance(call.func, ast.Attribute):
                helper = self.method_named(call.func.attr)
            if helper is not None and levels > 0:
                for stmt in helper.body:
                    found |= {text_of(n) or getattr(n, "attr", "") for n in nodes(stmt)}
                    found |= {
                        n.value
                        for n in nodes(stmt)
                        if isinstance(n, ast.Constant) and isinstance(n.value, str)
                    }
        found.discard("")
        return found

    def method_named(self, name: str) -> Function | None:
        """The one method of this name among the classes of the module: `record.is_stale()`."""
        found = [c.methods[name] for c in self.module.classes.values() if name in c.methods]
        return found[0] if len(found) == 1 else None

    def _calls_behind(self, function: Function, node: ast.AST) -> list[ast.Call]:
        """The calls whose results an expression rests on, through local assignments."""
        found: list[ast.Call] = []
        seen: set[str] = set()
        queue: list[tuple[ast.AST, int]] = [(node, 5)]
        while queue and len(found) < 40:
            each, depth = queue.pop()
            for part in nodes(each):
                if isinstance(part, ast.Call):
                    found.append(part)
                elif isinstance(part, ast.Name) and part.id not in seen and depth > 0:
                    seen.add(part.id)
                    queue += [(value, depth - 1) for value in function.values(part.id)[:6]]
        return found

    def rests_on(self, function: Function, node: ast.AST, judged: Event) -> bool:
        """Does this expression rest on the result of that call?"""
        return any(call is judged.site for call in self._calls_behind(function, node))

    def controls(self, judged: Event, act: Event) -> bool:
        """Does the act happen only by what the judged event found?"""
        for _frame, test in self.tests(act):
            if self.rests_on(act.where, test, judged):
                return True
        for frame in act.frames:
            if frame.kind == "try" and frame.part in ("handler", "else"):
                if any(f.node is frame.node and f.part == "body" for f in judged.frames):
                    return True
        return False

    def mine(self, event: Event) -> bool:
        """Is the event guarded by something that says that the lock is ours?"""
        for frame, test in self.tests(event):
            function = self.where_of(frame, event)
            looks_only = self.only_looks(function, test)
            if looks_only:
                continue
            if self.asks_owner(function, test):
                return True
            texts = {text_of(n) or getattr(n, "attr", "") for n in nodes(test)}
            texts |= {text.rpartition(".")[2] for text in texts}
            if any(MINE.search(text) for text in texts if text):
                return True
            if any(self.is_handle(function, text) for text in texts if text.startswith("self.")):
                return True
            if any(MINE.search(text) for text in function.texts(test) if len(text) < 30):
                return True
        return False

    def is_handle(self, function: Function, name: str) -> bool:
        """Is this an attribute that an acquire fills: with an open file, or with True?"""
        given = function.within.attributes.get(name[5:], []) if function.within else []
        kinds = {is_constant(v, None) or is_constant(v, False) for v, _ in given}
        return (len(given) > 1 and kinds == {True, False}) or any(
            isinstance(v, ast.Call) and self.module.dotted(v.func) in ("open", "os.open")
            for v, _ in given
        )

    def asks_owner(self, function: Function, test: ast.expr, levels: int = 2) -> bool:
        """Does a helper in this test compare what the lock says with who asks?"""
        for call in (node for node in nodes(test) if isinstance(node, ast.Call)):
            helper = self.reader.callee(function, self.module.called(call))
            if helper is None or levels == 0:
                continue
            for answer in returned(helper.body):
                for node in nodes(answer) if answer is not None else ():
                    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
                        if self._names_asker(helper, node) and self._reads(helper, node):
                            return True
        return False

    def _names_asker(self, helper: Function, node: ast.Compare) -> bool:
        """Is one side ourselves: our pid, what the object keeps, what the caller handed in?"""
        for side in (node.left, *node.comparators):
            text = text_of(side)
            if any("getpid" in each for each in helper.texts(side)):
                return True
            if text.startswith("self.") or (
                isinstance(side, ast.Name) and text in helper.parameters
            ):
                return True
        return False

    def _reads(self, helper: Function, node: ast.Compare) -> bool:
        """Does the other side come out of the file?"""
        found = {id(call) for call in self._calls_behind(helper, node)}
        return any(
            id(e.site) in found and e.kind in ("read", "open") for e in self.whole(helper)
        ) or any(
            self.module.dotted(call.func).endswith("readlink")
            for call in self._calls_behind(helper, node)
        )

    def mine_for_release(self, event: Event) -> bool:
        """Is the removal guarded by a comparison with our own pid, token or flag?"""
        for frame, test in self.tests(event):
            function = self.where_of(frame, event)
            texts = {text for text in function.texts(test) if len(text) < 40}
            texts |= {text_of(n) for n in nodes(test)}
            if self.asks_owner(function, test):
                return True
            own = any("getpid" in t or t in ("token", "nonce", "uuid") for t in texts)
            same = ast.NotEq if frame.part == "else" else ast.Eq
            if frame.part in ("then", "body", "else") and any(
                own or any(OURS.search(text_of(side)) for side in (n.left, *n.comparators))
                for n in nodes(test)
                if isinstance(n, ast.Compare) and isinstance(n.ops[0], same)
            ):
                return True
            flags = {text_of(n).rpartition(".")[2] for n in nodes(test)}
            if frame.part == "then" and any(FLAG.search(flag) for flag in flags if flag):
                return True
        return False

    def where_of(self, frame: Frame, event: Event) -> Function:
        """The function in which a frame of the event stands."""
        inner = event.facts.get("inside")
        while isinstance(inner, Event):
            if frame in inner.frames:
                return inner.where
            inner = inner.facts.get("inside")
        return event.where

    def only_looks(self, function: Function, test: ast.expr) -> bool:
        """Does a test ask only whether the file is there, itself or by a helper of ours?"""
        calls = [call for call in nodes(test) if isinstance(call, ast.Call)]
        if len(calls) != 1:
            return False
        plain = test.operand if isinstance(test, ast.UnaryOp) else test
        if plain is not calls[0]:
            return False
        called = self.module.called(calls[0])
        helper = self.reader.callee(function, called)
        if helper is not None:
            kinds = {event.kind for event in self.whole(helper)} - {"other", "call"}
            return bool(kinds) and kinds <= {"exists", "key_exists"}
        return any(e.site is calls[0] and e.kind == "exists" for e in self.own(function))

    def under_lock(self, event: Event) -> bool:
        """Does it happen in the `with` of a lock between processes, made elsewhere or here?"""
        for frame in event.frames:
            for item in frame.node.items if frame.kind == "with" else ():
                where, given = self.where_of(frame, event), item.context_expr
                made = maker_of(where, given)
                name = self.module.dotted(made.func) if made is not None else ""
                if name.partition(".")[0] in ("threading", "asyncio", "multiprocessing"):
                    continue
                told = text_of(given) or name.rpartition(".")[2]
                if by_kernel(self.module, name) or words.speaks_of_lock(told):
                    return True
        return False

    def handled_by(self, event: Event) -> list[ast.ExceptHandler]:
        """The handlers of the innermost `try` whose body holds the event."""
        for frame in reversed(event.frames):
            if frame.kind == "try" and frame.part == "body":
                return list(frame.node.handlers)
        return []

    def in_finally(self, event: Event) -> bool:
        return any(f.kind == "try" and f.part == "finally" for f in event.frames)

    def in_handler_of(self, act: Event, tried: Event) -> bool:
        """Does the act stand in a handler of a `try` whose body holds the other event?"""
        for frame in act.frames:
            if frame.kind == "try" and frame.part == "handler":
                if any(f.node is frame.node and f.part == "body" for f in tried.frames):
                    return True
        return False

    def loops(self, event: Event) -> list[ast.While]:
        return [f.node for f in event.frames if isinstance(f.node, ast.While) and f.part == "body"]

    # --- what stands for a lock ----------------------------------------------------------------

    def flocked(self, function: Function) -> dict[str, Event]:
        """The paths whose files the unit of this function locks with the kernel, by key."""
        group = function.within
        if group not in self._flocked:
            found: dict[str, Event] = {}
            for key, event, _opened in self._locked_files(group):
                found.setdefault(key, event)
            self._flocked[group] = found
        return self._flocked[group]

    def _locked_files(self, group: Class | None) -> list[tuple[str, Event, Event]]:
        """Each path that a unit locks, with its lock and the call that opened it."""
        if group not in self._locked:
            acts = [event for member in self.members(group) for event in self.whole(member)]
            self._locked[group] = [
                (key, event, opened)
                for event in acts  # all are read by now, and with them what holds a file open
                if event.kind in ("flock", "library_lock") and not event.facts.get("windows")
                for opened in ([event] if event.kind == "library_lock" else self.handles(event))
                for key in (opened.key, *self.also_known(opened))
            ]
        return self._locked[group]

    def made_exclusively(self, function: Function) -> set[str]:
        """The locked paths that O_EXCL or "x" makes, each time that they are opened to be locked.

        Such a file excludes by its presence, and its removal is the release.
        """
        group = function.within
        if group not in self._alone:
            alone: dict[str, bool] = {}
            for key, _event, opened in self._locked_files(group):
                exclusive = opened.kind == "create" and bool(opened.facts.get("exclusive"))
                alone[key] = alone.get(key, True) and exclusive
            self._alone[group] = {key for key, exclusive in alone.items() if exclusive}
        return self._alone[group]

    def also_known(self, opened: Event) -> list[str]:
        """The attributes that hold the path that was opened: `self.path = path; open(path)`."""
        group = opened.where.within
        if group is None or opened.key.startswith("self."):
            return []
        return [
            f"self.{name}"
            for name, given in group.attributes.items()
            if len(given) == 1
            and given[0][1] is opened.where
            and opened.where.key(given[0][0]) == opened.key
        ]

    def handles(self, event: Event) -> list[Event]:
        """Which calls opened what this event locks; through a helper, by the caller's argument."""
        inner = event.facts.get("inside")
        opened: list[Event] = []
        if isinstance(inner, Event):
            called = None
            for call in self.own(event.where):
                if call.site is event.site and call.kind == "call":
                    called = call.facts["called"]
            if called is not None:
                for given in [*called.args, *called.keywords.values()]:
                    opened += self.reader.opened(event.where, given)
            if not opened:
                at = self._renamed(event, self.handles(inner))
                opened += at
        else:
            opened = self.reader.opened(event.where, event.facts.get("handle_expr"))
        return opened

    def _renamed(self, event: Event, opened: list[Event]) -> list[Event]:
        """What a helper opened, under the caller's names."""
        found = []
        for each in opened:
            for other in self.whole(event.where):
                if other.site is event.site and other.facts.get("inside") is each:
                    found.append(other)
                    break
            else:
                found.append(each)
        return found

    def has_flock(self, events: Iterable[Event]) -> bool:
        return any(event.kind in ("flock", "library_lock") for event in events)


FILE_ACTS = frozenset("create write unlink read exists open age stat touch alive".split())
