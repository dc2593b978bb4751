"""What a module holds: its functions, classes, constants and imports, and what a name stands for.

`Function.key(expr)` is one text for one thing: two expressions that lead to the same path, key or
handle have the same key, through assignments, `Path(...)`, `str(...)` and `.fileno()`. A parameter
is written `⟨name⟩`, so that a caller can put its argument there.
Nothing here calls itself without a bound: nesting of any depth is walked by a stack.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from . import words

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPTH = 10  # how far a name is followed through assignments
# One thing under another type: the key is that of the first argument.
SAME = frozenset(
    "str bytes repr Path pathlib.Path PurePath pathlib.PurePath os.fspath os.path.abspath"
    " os.path.realpath os.path.expanduser os.path.normpath os.path.expandvars os.fsencode"
    " os.fsdecode int open io.open contextlib.closing closing".split()
)
JOINS = frozenset("Path pathlib.Path PurePath pathlib.PurePath".split())
SAME_METHODS = frozenset(
    "fileno resolve absolute expanduser as_posix encode decode strip rstrip __fspath__".split()
)
# `await sync_to_async(f)(x)` and their like call f with x.
WRAPPERS = frozenset(
    "sync_to_async asgiref.sync.sync_to_async partial functools.partial async_to_sync".split()
)
HANDS_ON = frozenset(
    "asyncio.to_thread anyio.to_thread.run_sync trio.to_thread.run_sync run_in_threadpool".split()
)
# Classes that lock a file by the kernel: its path is their first argument.
BY_KERNEL = frozenset(
    "FileLock UnixFileLock AsyncFileLock AsyncUnixFileLock InterProcessLock"
    " InterProcessReaderWriterLock".split()
)
OF_LIBRARY = re.compile(r"(^|[._])(filelock|fasteners|portalocker|zc|process_lock)\b")
PATHS = ("lock_file", "filename", "path", "name")
TELLS_PATH = frozenset("lock_file _lock_file path _path filename lockfile".split())
LEAVES = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Frame(NamedTuple):
    """One statement around another: `part` is the block of it in which the other stands."""

    kind: str  # if, while, for, try, with, match
    node: Any  # the statement, whose blocks have the names of its own class
    part: str  # then, else; body, handler, finally
    handler: ast.ExceptHandler | None = None
    subject: ast.expr | None = None  # what a `match` looks at; its node is the case


Frames = tuple[Frame, ...]


class Called(NamedTuple):
    """A call with its wrappers taken off."""

    node: ast.Call
    func: ast.expr
    args: list[ast.expr]
    keywords: dict[str, ast.expr]


def leaves(block: list[ast.stmt]) -> bool:
    """Does this block never reach the statement after it?"""
    if not block:
        return False
    last = block[-1]
    if isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        name = text_of(last.value.func)
        return name in ("sys.exit", "exit", "quit", "os._exit", "pytest.skip", "self.fail")
    if isinstance(last, ast.If):
        return leaves(last.body) and leaves(last.orelse)
    if isinstance(last, ast.With | ast.AsyncWith):
        return leaves(last.body)
    return False


def text_of(node: ast.AST | None) -> str:
    """`a.b.c` of names alone, else an empty text."""
    if type(node) is ast.Name:
        return node.id
    if type(node) is not ast.Attribute:
        return ""
    if type(node.value) is ast.Name:
        return f"{node.value.id}.{node.attr}"
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


class Unfinished(Exception):
    """A file asks for more steps than are spent on one; the text says why."""


MOST_STEPS = 10_000_000  # blocks around statements, in one function: about ten seconds


def counted(walked: Iterator[tuple[ast.stmt, Frames]]) -> Iterator[tuple[ast.stmt, Frames]]:
    """The same statements. Raises Unfinished where the blocks around them are too many."""
    steps = 0
    for each in walked:
        steps += len(each[1])
        if steps > MOST_STEPS:
            raise Unfinished(f"too many tests, one behind the other, up to line {each[0].lineno}")
        yield each


def statements(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, Frames]]:
    """Every statement with what stands around it, in order; nested functions and classes unopened.

    What follows `if test: return` stands in the else of it.
    """
    stack: list[tuple[Iterator[ast.stmt], Frames]] = [(iter(body), ())]
    while stack:
        block, frames = stack[-1]
        stmt = next(block, None)
        if stmt is None:
            stack.pop()
            _carry_out(stack, frames)
            continue
        yield stmt, frames
        if isinstance(stmt, ast.If):
            if refused := _refusals(stmt):
                stack[-1] = (block, (*frames, *refused))
            elif stmt.orelse and leaves(stmt.orelse) and not leaves(stmt.body):
                stack[-1] = (block, (*frames, Frame("if", stmt, "then")))
        for inner, frame in reversed(blocks(stmt)):
            stack.append((iter(inner), (*frames, frame)))


def _refusals(stmt: ast.If) -> Frames:
    """`if a: raise`, `elif b: raise`: what follows stands in the else of each."""
    found: list[Frame] = []
    each: ast.If | None = stmt
    while each is not None and leaves(each.body):
        found.append(Frame("if", each, "else"))
        if not each.orelse:
            return tuple(found)
        below = each.orelse[0]
        each = below if len(each.orelse) == 1 and isinstance(below, ast.If) else None
    return ()


def _carry_out(stack: list[tuple[Iterator[ast.stmt], Frames]], frames: Frames) -> None:
    """What a `with` or the body of a `try` found out, and left for, holds behind it too."""
    place = len(stack) - 1
    while place >= 0 and frames[: len(stack[place][1])] != stack[place][1]:
        if stack[place][1][-1].kind != "try" or frames[-1].part == "then":
            return
        place -= 1  # a handler of the same `try` is not behind it
    if place < 0:
        return
    block, outer = stack[place]
    inner = frames[len(outer) :]
    if inner and (inner[0].kind == "with" or (inner[0].kind, inner[0].part) == ("try", "body")):
        if len(inner) > 1 and all(frame.kind == "if" for frame in inner[1:]):
            if inner[0].kind == "with" or frames[-1:] != outer[-1:]:
                stack[place] = (block, (*outer, *inner[1:]))


def blocks(stmt: ast.stmt) -> list[tuple[list[ast.stmt], Frame]]:
    """The blocks of a compound statement, in the order of running."""
    if isinstance(stmt, ast.If):
        return [(stmt.body, Frame("if", stmt, "then")), (stmt.orelse, Frame("if", stmt, "else"))]
    if isinstance(stmt, ast.While):
        return [
            (stmt.body, Frame("while", stmt, "body")),
            (stmt.orelse, Frame("while", stmt, "else")),
        ]
    if isinstance(stmt, ast.For | ast.AsyncFor):
        return [(stmt.body, Frame("for", stmt, "body")), (stmt.orelse, Frame("for", stmt, "else"))]
    if isinstance(stmt, ast.With | ast.AsyncWith):
        return [(stmt.body, Frame("with", stmt, "body"))]
    if isinstance(stmt, ast.Try | ast.TryStar):
        handled = [(h.body, Frame("try", stmt, "handler", h)) for h in stmt.handlers]
        return [
            (stmt.body, Frame("try", stmt, "body")),
            *handled,
            (stmt.orelse, Frame("try", stmt, "else")),
            (stmt.finalbody, Frame("try", stmt, "finally")),
        ]
    if isinstance(stmt, ast.Match):
        return [(c.body, Frame("match", c, "body", None, stmt.subject)) for c in stmt.cases]
    return []


def heads(stmt: ast.stmt) -> list[ast.AST]:
    """The expressions of a statement that do not belong to a block of it."""
    if isinstance(stmt, ast.If | ast.While):
        return [stmt.test]
    if isinstance(stmt, ast.For | ast.AsyncFor):
        return [stmt.iter]
    if isinstance(stmt, ast.With | ast.AsyncWith):
        return [item.context_expr for item in stmt.items]
    if isinstance(stmt, ast.Match):
        return [stmt.subject, *[case.guard for case in stmt.cases if case.guard is not None]]
    if isinstance(stmt, ast.Try | ast.TryStar | ast.ClassDef | FunctionNode):
        return []
    return [stmt]


def calls_in(node: ast.AST) -> list[ast.Call]:
    """The calls of an expression in the order of their end: the inner before the outer."""
    found = [each for each in nodes(node) if type(each) is ast.Call]
    if len(found) > 1:
        found.sort(key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))
    return found


BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
# The commonest expressions and the parts of theirs that hold others; no part of these is None.
PARTS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Name: (),
    ast.Constant: (),
    ast.Lambda: (),
    ast.Attribute: ("value",),
    ast.Call: ("func", "args", "keywords"),
    ast.keyword: ("value",),
    ast.Expr: ("value",),
    ast.Assign: ("targets", "value"),
    ast.Subscript: ("value", "slice"),
    ast.BinOp: ("left", "right"),
    ast.BoolOp: ("values",),
    ast.UnaryOp: ("operand",),
    ast.Tuple: ("elts",),
    ast.List: ("elts",),
    ast.JoinedStr: ("values",),
    ast.Await: ("value",),
    ast.Starred: ("value",),
}


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, without the bodies of lambdas."""
    stack = [node]
    while stack:
        each = stack.pop()
        yield each
        parts = PARTS.get(type(each))
        if parts is not None:
            for name in parts:
                below = getattr(each, name)
                if type(below) is list:
                    stack += below
                else:
                    stack.append(below)
            continue
        for name in each._fields:
            below = getattr(each, name, None)
            if isinstance(below, list):
                stack.extend([one for one in below if isinstance(one, ast.AST)])
            elif isinstance(below, ast.AST) and not isinstance(below, LEAVES):
                stack.append(below)


class Class:
    """A class: its methods and what is assigned to the attributes of its objects."""

    def __init__(self, module: Module, node: ast.ClassDef) -> None:
        self.module = module
        self.node = node
        self.name = node.name
        self.methods: dict[str, Function] = {}
        self.attributes: dict[str, list[tuple[ast.expr, Function | None]]] = {}
        self.parents = [text_of(each).rpartition(".")[2] for each in node.bases]
        for stmt in node.body:
            if isinstance(stmt, ast.Assign):
                for target in stmt.targets:
                    if isinstance(target, ast.Name):
                        self.attributes.setdefault(target.id, []).append((stmt.value, None))
            elif (
                isinstance(stmt, ast.AnnAssign) and isinstance(stmt.target, ast.Name) and stmt.value
            ):
                self.attributes.setdefault(stmt.target.id, []).append((stmt.value, None))

    def call_properties(self) -> None:
        """Read `self.stale` as the call that it is, where a property finds something out."""
        asking = {f"self.{name}" for name, method in self.methods.items() if method.finds_out}
        if not asking:
            return
        for method in self.methods.values():
            for stmt in method.body:
                for node in ast.walk(stmt):
                    for name, value in ast.iter_fields(node):
                        if isinstance(value, ast.Attribute) and text_of(value) in asking:
                            setattr(node, name, called_so(value))
                        elif isinstance(value, list):
                            for place, each in enumerate(value):
                                if isinstance(each, ast.Attribute) and text_of(each) in asking:
                                    value[place] = called_so(each)

    def method(self, name: str) -> Function | None:
        """By name, of this class or of a parent in the same module."""
        seen: set[str] = set()
        queue = [self]
        while queue:
            each = queue.pop(0)
            if each.name in seen:
                continue
            seen.add(each.name)
            plain = name.removeprefix(f"_{each.name.lstrip('_')}")
            found = each.methods.get(name) or each.methods.get(plain)
            if found:
                return found
            queue += [p for p in map(self.module.classes.get, each.parents) if p]
        return None


class Function:
    """A function, or the statements of a module that stand in none."""

    def __init__(
        self,
        module: Module,
        node: FunctionNode | ast.Module,
        within: Class | None = None,
        parent: Function | None = None,
    ) -> None:
        self.module = module
        self.node = node
        self.within = within
        self.parent = parent
        self.body: list[ast.stmt] = node.body
        self.name = "" if isinstance(node, ast.Module) else node.name
        self.line = 1 if isinstance(node, ast.Module) else node.lineno
        self.parameters: list[str] = []
        self.defaults: dict[str, ast.expr] = {}
        if not isinstance(node, ast.Module):
            self._read_parameters(node.args)
        self.assigned: dict[str, list[ast.expr | None]] = {}
        self.looped: dict[str, ast.expr] = {}
        self.walked: list[tuple[ast.stmt, Frames]] = list(counted(statements(self.body)))
        for stmt, _frames in self.walked:
            self._assign(stmt)

    def _read_parameters(self, args: ast.arguments) -> None:
        plain = [*args.posonlyargs, *args.args]
        self.parameters = [a.arg for a in [*plain, *args.kwonlyargs]]
        given = plain[len(plain) - len(args.defaults) :]
        self.defaults = {a.arg: d for a, d in zip(given, args.defaults, strict=False)}
        for name, default in zip(args.kwonlyargs, args.kw_defaults, strict=False):
            if default is not None:
                self.defaults[name.arg] = default

    @property
    def title(self) -> str:
        """As people name it."""
        name = self.name or "the module"
        return f"{self.within.name}.{name}" if self.within else name

    @property
    def answer(self) -> ast.expr | None:
        """What a function returns that does nothing else."""
        last = self.body[-1] if self.body and len(self.body) <= 2 else None
        return last.value if isinstance(last, ast.Return) else None

    @property
    def finds_out(self) -> bool:
        """A property that tests something, and is no mere name for a value."""
        if not any(name.endswith("property") for name in self.decorators):
            return False
        kinds = ast.If | ast.Try | ast.Compare | ast.Return
        asks = [n for s in self.body for n in ast.walk(s) if isinstance(n, kinds)]
        return any(not isinstance(n, ast.Return) or denied(n.value) for n in asks)

    @property
    def decorators(self) -> list[str]:
        if isinstance(self.node, ast.Module):
            return []
        found = [d.func if isinstance(d, ast.Call) else d for d in self.node.decorator_list]
        return [self.module.dotted(each) for each in found]

    @property
    def manages_context(self) -> bool:
        """A generator under `@contextmanager`."""
        return any(name.endswith("contextmanager") for name in self.decorators)

    def _assign(self, stmt: ast.stmt) -> None:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(stmt, ast.Assign):
            pairs = [(target, stmt.value) for target in stmt.targets]
        elif isinstance(stmt, ast.AnnAssign) and stmt.value:
            pairs = [(stmt.target, stmt.value)]
        elif isinstance(stmt, ast.AugAssign):
            pairs = [(stmt.target, None)]
        elif isinstance(stmt, ast.With | ast.AsyncWith):
            pairs = [(i.optional_vars, i.context_expr) for i in stmt.items if i.optional_vars]
        elif isinstance(stmt, ast.For | ast.AsyncFor):
            if isinstance(stmt.target, ast.Name):
                self.looped[stmt.target.id] = stmt.iter
            pairs = [(stmt.target, None)]
        elif isinstance(stmt, ast.Match):
            names = [name for case in stmt.cases for name in captured(case.pattern)]
            pairs = [(ast.Name(name, ast.Store()), stmt.subject) for name in names]
        for head in heads(stmt) if self.module.names_in_place else ():
            for node in nodes(head):
                if isinstance(node, ast.NamedExpr):
                    pairs.append((node.target, node.value))
        for target, value in pairs:
            self._bind(target, value)

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.assigned.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for number, each in enumerate(target.elts):
                self._bind(each, values[number] if len(values) == len(target.elts) else None)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            if target.value.id in ("self", "cls") and self.within and value is not None:
                self.within.attributes.setdefault(target.attr, []).append((value, self))

    def values(self, name: str) -> list[ast.expr]:
        """What is assigned to a local name, here or in the functions around."""
        scope: Function | None = self
        while scope:
            if name in scope.assigned:
                return [each for each in scope.assigned[name] if each is not None]
            if name in scope.parameters:
                return []
            scope = scope.parent
        return [each for each in self.module.top.assigned.get(name, []) if each is not None]

    def is_parameter(self, name: str) -> bool:
        return name in self.parameters and name not in self.assigned and name not in ("self", "cls")

    def only_value(self, name: str) -> ast.expr | None:
        """What a local name stands for, if it is assigned once."""
        found = self.assigned.get(name)
        if found is None and self.parent and name not in self.parameters:
            found = self.parent.assigned.get(name)
        return found[0] if found is not None and len(found) == 1 else None

    def key(self, node: ast.AST | None, depth: int = DEPTH) -> str:
        """One text for one thing."""
        if node is None or depth <= 0:
            return "…"
        below = depth - 1
        if isinstance(node, ast.Name):
            if self.is_parameter(node.id):
                return f"⟨{node.id}⟩"
            value = self.only_value(node.id)
            if value is not None and followed(value):
                return self.key(value, below)
            around = self.parent
            handed = around is not None and node.id not in self.assigned
            return f"⟨{node.id}⟩" if handed and around and around.is_parameter(node.id) else node.id
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else repr(node.value)
        if isinstance(node, ast.Attribute):
            told = self._path_in(node) if node.attr in TELLS_PATH else None
            return self.key(told, below) if told else f"{self.key(node.value, below)}.{node.attr}"
        if isinstance(node, ast.Await | ast.NamedExpr):
            return self.key(node.value, below)
        if isinstance(node, ast.Call):
            return self._key_of_call(node, below)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Add | ast.Mod):
            sign = {ast.Div: "/", ast.Mod: "%"}.get(type(node.op), "")
            return f"{self.key(node.left, below)}{sign}{self.key(node.right, below)}"
        if isinstance(node, ast.JoinedStr):
            return "".join(self.key(each, below) for each in node.values)
        if isinstance(node, ast.FormattedValue):
            return f"{{{self.key(node.value, below)}}}"
        if isinstance(node, ast.Subscript):
            return f"{self.key(node.value, below)}[{self.key(node.slice, below)}]"
        if isinstance(node, ast.Starred):
            return self.key(node.value, below)
        if isinstance(node, ast.Tuple):
            return ",".join([self.key(each, below) for each in node.elts])
        return (
            f"<{type(node).__name__} {getattr(node, 'lineno', 0)}.{getattr(node, 'col_offset', 0)}>"
        )

    def _path_in(self, node: ast.Attribute) -> ast.expr | None:
        """The path that `lock.lock_file` tells, where the lock is made here by its library."""
        made = maker_of(self, node.value)
        if made is None or not by_kernel(self.module, self.module.dotted(made.func)):
            return None
        return path_of(made)

    def _key_of_call(self, node: ast.Call, below: int) -> str:
        name = self.module.dotted(node.func)
        if name in SAME and node.args:
            parts = node.args if name in JOINS else node.args[:1]
            return "/".join([self.key(each, below) for each in parts])
        if name == "os.path.join":
            return "/".join(self.key(each, below) for each in node.args)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "joinpath":
            return "/".join(self.key(each, below) for each in (node.func.value, *node.args))
        if isinstance(node.func, ast.Attribute) and node.func.attr in SAME_METHODS:
            return self.key(node.func.value, below)
        told = self._key_of_answer(node, name, below)
        if told:
            return told
        given = [self.key(each, below) for each in node.args]
        given += [f"{each.arg}={self.key(each.value, below)}" for each in node.keywords]
        return f"{name or self.key(node.func, below)}({', '.join(given)})"

    def _key_of_answer(self, node: ast.Call, name: str, below: int) -> str:
        """The path that a helper of the module makes, works on, and returns; "" for any other."""
        helper = self.module.functions.get(name)
        if helper is None or helper is self or below < 3:
            return ""
        answers = [s.value for s, _ in helper.walked if isinstance(s, ast.Return)]
        paths = [a for a in answers if a is not None and not isinstance(a, ast.Constant)]
        if not paths or not all(isinstance(a, ast.Name) for a in paths):
            return ""
        keys = {helper.key(each, below - 1) for each in paths}
        key = keys.pop()
        plain = not keys and "(" not in key and re.search(r"[/.]", key)
        if not plain:
            return ""
        bound = dict(zip(helper.parameters, node.args, strict=False))
        bound |= {each.arg: each.value for each in node.keywords if each.arg}

        def put(found: re.Match[str]) -> str:
            given = bound.get(found[1])
            return self.key(given, below - 1) if given is not None else found[1]

        return re.sub(r"⟨(\w+)⟩", put, key)

    def texts(self, node: ast.AST | None) -> list[str]:
        """Every name and text that an expression is made of, followed through assignments."""
        found: list[str] = []
        seen: set[object] = set()
        queue: list[tuple[ast.AST | None, Function, int]] = [(node, self, DEPTH)]
        while queue and len(found) < 60:
            each, scope, depth = queue.pop()
            if each is None or depth <= 0:
                continue
            for part in nodes(each):
                if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
                    text = part.value
                    found.append(text if isinstance(text, str) else text.decode("latin-1"))
                elif isinstance(part, ast.Name):
                    found.append(part.id)
                    if (scope, part.id) not in seen:
                        seen.add((scope, part.id))
                        below = scope.values(part.id)
                        if part.id in scope.defaults and scope.is_parameter(part.id):
                            below = [*below, scope.defaults[part.id]]
                        if part.id in scope.looped:
                            below = [*below, scope.looped[part.id]]
                        queue += [(value, scope, depth - 3) for value in below[:4]]
                elif isinstance(part, ast.Attribute):
                    found.append(part.attr)
                    owner = scope.within
                    if owner and text_of(part) in (f"self.{part.attr}", f"cls.{part.attr}"):
                        if part.attr not in seen:
                            seen.add(part.attr)
                            for value, where in owner.attributes.get(part.attr, [])[:4]:
                                queue.append((value, where or scope, depth - 3))
                            told = owner.methods.get(part.attr)
                            if told is not None and told.answer is not None:
                                queue.append((told.answer, told, depth - 3))
                elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                    helper = self.module.functions.get(part.func.id)
                    if helper is not None and helper not in seen and helper.answer is not None:
                        seen.add(helper)
                        queue.append((helper.answer, helper, depth - 3))
        return found

    def lockish(self, node: ast.AST | None) -> bool:
        """Does this path or key speak of a lock, by itself or by the class that it belongs to?"""
        if node is None:
            return False
        texts = self.texts(node)
        if any(words.PACKAGES.search(text) for text in texts):
            return False
        if any(map(words.speaks_of_lock, texts)):
            return True
        inner: ast.AST = node
        while isinstance(inner, ast.Call) and (inner.args or isinstance(inner.func, ast.Attribute)):
            inner = inner.args[0] if inner.args else inner.func.value  # type: ignore[attr-defined]
        names = {"self": self.within.name if self.within else "", "": self.name}
        if isinstance(inner, ast.Attribute) and text_of(inner).count(".") == 1:
            alone = inner.attr.lower().strip("_") in words.GENERIC
            return alone and words.speaks_of_lock(names.get(text_of(inner.value), ""))
        if isinstance(inner, ast.Name) and inner.id.lower() in words.GENERIC:
            if self.within is None:
                return words.speaks_of_lock(self.name)
            kept = [name for name, given in self.within.attributes.items()
                    if any(w is self and text_of(v) == inner.id for v, w in given)]  # fmt: off
            return any(map(words.speaks_of_lock, (self.name, self.within.name, *kept)))
        return False


def captured(pattern: ast.pattern) -> Iterator[str]:
    """The names that a pattern of `match` binds: to a part of its subject."""
    for node in ast.walk(pattern):
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def by_kernel(module: Module, name: str) -> bool:
    """Is this the constructor of a library whose lock is the kernel's?"""
    root, _, last = name.rpartition(".")
    if last in module.classes:
        return False
    if last in BY_KERNEL:
        return True
    if last in ("Lock", "RLock"):
        return root.partition(".")[0] == "portalocker"
    return name == "zc.lockfile.LockFile"


def path_of(node: ast.Call) -> ast.expr | None:
    """The path that such a constructor is given."""
    if node.args:
        return None if isinstance(node.args[0], ast.Starred) else node.args[0]
    return next((each.value for each in node.keywords if each.arg in PATHS), None)


def maker_of(function: Function, owner: ast.AST | None) -> ast.Call | None:
    """The call that made an object, through one local name or attribute to the next."""
    for _ in range(6):
        if isinstance(owner, ast.Await):
            owner = owner.value
        if isinstance(owner, ast.Call):
            return owner
        if isinstance(owner, ast.Name):
            values = function.values(owner.id)
            owner = values[0] if len(values) == 1 else None
        elif (
            isinstance(owner, ast.Attribute)
            and text_of(owner).startswith(("self.", "cls."))
            and function.within
        ):
            given = function.within.attributes.get(owner.attr, [])
            made = [value for value, _ in given if isinstance(value, ast.Call)]
            owner = made[0] if len(made) == 1 else None
        else:
            return None
    return None


def denied(node: ast.expr | None) -> bool:
    """`not f(x)`, `a and b`: a truth that is worked out."""
    return isinstance(node, ast.UnaryOp | ast.BoolOp)


def called_so(node: ast.Attribute) -> ast.Call:
    """A property as a call of its method, in the place where it stands."""
    return ast.copy_location(ast.Call(node, [], []), node)


def followed(value: ast.expr) -> bool:
    """Is a name that holds this best known by it? A call of unknown effect makes a new thing."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str | bytes)
    return isinstance(
        value,
        ast.Name | ast.Attribute | ast.JoinedStr | ast.BinOp | ast.Subscript | ast.Call | ast.Await,
    )


class Module:
    """One parsed file."""

    def __init__(self, path: str, text: str, tree: ast.Module) -> None:
        self.path = path
        self.text = text
        self.lower = text.lower()
        self.names_in_place = ":=" in text
        self.imports: dict[str, str] = {}
        self.classes: dict[str, Class] = {}
        self.functions: dict[str, Function] = {}
        self.every: list[Function] = []
        self._read_imports(tree)
        self.top = Function(self, tree)
        self.every.append(self.top)
        self._open(self.top, None)
        if "property" in text:
            for group in self.classes.values():
                group.call_properties()

    def _read_imports(self, tree: ast.Module) -> None:
        stack: list[ast.AST] = [tree]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        self.imports[alias.asname] = alias.name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
            else:
                for name in BLOCKS:
                    stack += getattr(node, name, ())

    def _open(self, scope: Function, within: Class | None) -> None:
        """Find the functions and classes below, breadth first."""
        queue: list[tuple[Function, Class | None]] = [(scope, within)]
        while queue:
            outer, owner = queue.pop(0)
            bodies: list[tuple[list[tuple[ast.stmt, Frames]], Class | None]] = [
                (outer.walked, owner)
            ]
            while bodies:
                walked, holder = bodies.pop(0)
                in_class = holder is not owner
                for stmt, _frames in walked:
                    if isinstance(stmt, FunctionNode):
                        parent = outer if outer is not self.top else None
                        made = Function(self, stmt, holder or owner, parent)
                        self.every.append(made)
                        if in_class and holder:
                            holder.methods.setdefault(stmt.name, made)
                        elif outer is self.top or stmt.name not in self.functions:
                            self.functions[stmt.name] = made
                        queue.append((made, holder or owner))
                    elif isinstance(stmt, ast.ClassDef):
                        group = Class(self, stmt)
                        self.classes.setdefault(stmt.name, group)
                        bodies.append((list(statements(stmt.body)), group))

    def dotted(self, func: ast.AST) -> str:
        """The full name of what is called, through imports: `exists` is `os.path.exists`."""
        name = text_of(func)
        if not name:
            return ""
        first, dot, rest = name.partition(".")
        return self.imports.get(first, first) + dot + rest

    def called(self, node: ast.Call) -> Called:
        """A call with its wrappers taken off."""
        func, args = node.func, list(node.args)
        keywords = {each.arg: each.value for each in node.keywords if each.arg}
        if not args and type(func) is not ast.Call:
            return Called(node, func, args, keywords)
        if isinstance(func, ast.Call) and self.dotted(func.func) in WRAPPERS and func.args:
            return Called(node, func.args[0], [*func.args[1:], *args], keywords)
        if self.dotted(func) in HANDS_ON and args:
            return Called(node, args[0], args[1:], keywords)
        if isinstance(func, ast.Attribute) and func.attr == "run_in_executor" and len(args) > 1:
            return Called(node, args[1], args[2:], keywords)
        return Called(node, func, args, keywords)
