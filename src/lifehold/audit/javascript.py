"""JavaScript and TypeScript by tree-sitter: functions, and what each does to files and keys.

`Source.acts` are the calls that matter, in order: looks, makes, removes, asks a process, sets a
key. `key(node)` is one text for one path through `const` and `let`; `behind(node)` are the acts
that an expression rests on, through assignments and the functions of the same file.
Needs tree-sitter and its two grammars, which the extra `lifehold[audit]` brings.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from . import words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tree_sitter import Node, Parser

SUFFIXES = (".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx")
NEEDED = ("tree_sitter", "tree_sitter_javascript", "tree_sitter_typescript")
LONGEST = 5_000  # characters of a line; what is longer was written by a program
HINTS = re.compile(
    rb"[lL]ock|LOCK|[pP]id[FfPL]|\.pid\b|mutex|setnx|setNX|['\"]NX['\"]|\bNX:", re.ASCII
)
ACTS = re.compile(
    rb"existsSync|pathExists|unlink|rmSync|rmdir|mkdir|openSync|writeFile|process\.kill|setnx|setNX"
    rb"|['\"]NX['\"]|\bNX:|\.del\(|[eE]xpire\(|fs\.rm\(|\.open\(|['\"`]wx|O_EXCL|symlink"
    rb"|kill -0|ps -p"
)
FUNCTIONS = frozenset(
    "function_declaration function_expression arrow_function method_definition"
    " generator_function_declaration generator_function function".split()
)
LOOPS = frozenset("while_statement do_statement for_statement for_in_statement".split())
KINDS = {
    "existsSync": "exists",
    "pathExists": "exists",
    "pathExistsSync": "exists",
    "exists": "exists",
    "access": "exists",
    "accessSync": "exists",
    "stat": "stat",
    "statSync": "stat",
    "lstat": "stat",
    "lstatSync": "stat",
    "unlink": "unlink",
    "unlinkSync": "unlink",
    "rm": "unlink",
    "rmSync": "unlink",
    "rmdir": "unlink",
    "rmdirSync": "unlink",
    "remove": "unlink",
    "removeSync": "unlink",
    "rimraf": "unlink",
    "mkdir": "mkdir",
    "mkdirSync": "mkdir",
    "symlink": "link",
    "symlinkSync": "link",
    "link": "link",
    "linkSync": "link",
    "open": "open",
    "openSync": "open",
    "writeFile": "write",
    "writeFileSync": "write",
    "outputFile": "write",
    "outputFileSync": "write",
    "ensureFile": "write",
    "ensureFileSync": "write",
    "writeJson": "write",
    "writeJsonSync": "write",
    "readFile": "read",
    "readFileSync": "read",
    "readJson": "read",
    "readJsonSync": "read",
    "utimes": "touch",
    "utimesSync": "touch",
    "futimes": "touch",
    "futimesSync": "touch",
    "kill": "alive",
    **dict.fromkeys(
        "isRunning pidIsRunning isPidRunning pidExists processExists isProcessRunning"
        " isProcessAlive isPidAlive".split(),
        "alive",
    ),
    **dict.fromkeys("exec execSync execFileSync spawnSync".split(), "command"),
    "setnx": "setnx",
    "setNX": "setnx",
    "set": "set",
    "expire": "expire",
    "pexpire": "expire",
    "pExpire": "expire",
    "get": "get",
    "del": "del",
    "eval": "script",
    "evalsha": "script",
    "evalSha": "script",
    "on": "on",
    "once": "on",
}
NX = re.compile(r"['\"]NX['\"]|\bNX\s*:\s*true|\bnx\s*:\s*true")
ENDS = re.compile(r"['\"](EX|PX|EXAT|PXAT)['\"]|\b(EX|PX|ex|px|expiration|ttl)\b\s*:")
CLIENT = re.compile(r"redis|client|cache|\bkv\b|valkey|conn", re.IGNORECASE)
OF_FILES = re.compile(r"fs|promises|file|dir", re.IGNORECASE)
BY_COMMAND = re.compile(r"\bkill\b[\s'\",\[]+-0\b|\bps\b[\s'\",\[]+-p\b")
FILES = frozenset("exists stat unlink mkdir link open write read touch create".split())


@dataclass(slots=True, eq=False)
class Act:
    """One call. `key`: what it is done to; `holder`: the function in which it stands."""

    kind: str
    node: Node
    key: str
    target: Node | None
    holder: Scope
    lockish: bool = False
    facts: set[str] = field(default_factory=set)

    @property
    def lineno(self) -> int:
        return self.node.start_point[0] + 1

    @property
    def end_lineno(self) -> int:
        return self.node.end_point[0] + 1

    @property
    def col_offset(self) -> int:
        return self.node.start_point[1]

    @property
    def end_col_offset(self) -> int:
        return self.node.end_point[1]


@dataclass(slots=True, eq=False)
class Scope:
    """A function, or the file outside of all; `group` is its class."""

    node: Node
    name: str
    group: str
    acts: list[Act] = field(default_factory=list)

    @property
    def title(self) -> str:
        return ".".join(part for part in (self.group, self.name) if part) or "the file"


def missing() -> bool:
    """Is a part that is needed not installed?"""
    return any(importlib.util.find_spec(name) is None for name in NEEDED)


def may_hold_locks(data: bytes) -> bool:
    """Can a file of this content hold a finding?"""
    return HINTS.search(data) is not None and ACTS.search(data) is not None


@cache
def parser(suffix: str) -> Parser:
    import tree_sitter_javascript
    import tree_sitter_typescript
    from tree_sitter import Language, Parser

    if suffix in (".ts", ".mts", ".cts"):
        return Parser(Language(tree_sitter_typescript.language_typescript()))
    if suffix == ".tsx":
        return Parser(Language(tree_sitter_typescript.language_tsx()))
    return Parser(Language(tree_sitter_javascript.language()))


def text_of(node: Node | None) -> str:
    return node.text.decode("utf-8", "replace") if node is not None and node.text else ""


def below(node: Node | None) -> Iterator[Node]:
    """All nodes below, in order."""
    stack = [node] if node is not None else []
    while stack:
        each = stack.pop()
        yield each
        stack.extend(reversed(each.named_children))


def field_of(node: Node | None, name: str) -> Node | None:
    return node.child_by_field_name(name) if node is not None else None


def comments(path: str, text: str) -> Callable[[int], bool]:
    """Does an offset stand in a comment?"""
    root = parser("." + path.rpartition(".")[2]).parse(text.encode()).root_node
    found = [(n.start_byte, n.end_byte) for n in below(root) if n.type == "comment"]

    def within(at: int) -> bool:
        place = len(text[:at].encode())
        return any(first <= place < last for first, last in found)

    return within


class Source:
    """One file."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        suffix = "." + path.rpartition(".")[2]
        self.root = parser(suffix).parse(text.encode()).root_node
        self.values: dict[str, list[Node]] = {}
        self.named: dict[str, list[Scope]] = {}
        self.scopes: list[Scope] = []
        self.by_node: dict[int, Scope] = {}
        self.holders: dict[int, Scope] = {}
        self.parents: dict[int, Node] = {}  # `node.parent` looks for it from the root
        self._read()

    @property
    def acts(self) -> Iterator[Act]:
        for scope in self.scopes:
            yield from scope.acts

    def _read(self) -> None:
        calls = []
        self.scopes.append(Scope(self.root, "", ""))
        for node in below(self.root):
            if node.type in FUNCTIONS:
                scope = Scope(node, name_of(node), self.group_of(node))
                self.scopes.append(scope)
                self.by_node[node.id] = scope
                self.named.setdefault(scope.name, []).append(scope)
            elif node.type == "variable_declarator":
                self._bind(field_of(node, "name"), field_of(node, "value"))
            elif node.type == "assignment_expression":
                self._bind(field_of(node, "left"), field_of(node, "right"))
            elif node.type in ("public_field_definition", "field_definition"):
                name = field_of(node, "name") or field_of(node, "property")
                value = field_of(node, "value")
                if value is not None:
                    self.values.setdefault(f"this.{text_of(name)}", []).append(value)
            elif node.type == "call_expression":
                calls.append(node)
            inner = self.by_node.get(node.id) or self.scope(node)
            for each in node.named_children:
                self.parents[each.id] = node
                self.holders[each.id] = inner
        for node in calls:
            scope = self.scope(node)
            act = self._act(node, scope)
            if act is not None:
                scope.acts.append(act)

    def _bind(self, name: Node | None, value: Node | None) -> None:
        if name is None or value is None:
            return
        if name.type in ("object_pattern", "array_pattern"):
            for each in below(name):
                if each.type in ("identifier", "shorthand_property_identifier_pattern"):
                    self.values.setdefault(text_of(each), []).append(value)
            return
        self.values.setdefault(text_of(name), []).append(value)

    def above(self, node: Node) -> Iterator[Node]:
        """What stands around a node, the nearest first."""
        each = self.parents.get(node.id)
        while each is not None:
            yield each
            each = self.parents.get(each.id)

    def group_of(self, node: Node) -> str:
        for each in self.above(node):
            if each.type in ("class_declaration", "class", "abstract_class_declaration"):
                return text_of(field_of(each, "name"))
        return ""

    def scope(self, node: Node) -> Scope:
        """The function that holds a node."""
        return self.holders.get(node.id, self.scopes[0])

    def unit(self, scope: Scope) -> list[Act]:
        """What the class of a function does, or the functions of the file that stand in none."""
        return [act for s in self.scopes if s.group == scope.group for act in s.acts]

    def value(self, node: Node | None) -> Node | None:
        """What a name stands for, where it is given one thing."""
        for _ in range(6):
            found = self.values.get(text_of(node), []) if node is not None else []
            if len(found) != 1:
                return node
            node = found[0]
        return node

    def key(self, node: Node | None) -> str:
        plain = self.value(node)
        return re.sub(r"\s+", "", text_of(plain if plain is not None else node))

    def texts(self, node: Node | None, depth: int = 3) -> Iterator[str]:
        """The names and texts that an expression is made of."""
        for each in below(node):
            if each.type in (
                "identifier",
                "property_identifier",
                "string_fragment",
                "template_string",
                "private_property_identifier",
            ):
                yield text_of(each)
            if depth and each.type in ("identifier", "member_expression"):
                for value in self.values.get(text_of(each), [])[:3]:
                    if value.type not in FUNCTIONS and value.end_byte - value.start_byte < 400:
                        yield from self.texts(value, depth - 1)

    def lockish(self, node: Node | None, scope: Scope) -> bool:
        """Does this path or key speak of a lock, by itself or by where it stands?"""
        found = list(self.texts(node))
        if any(words.PACKAGES.search(each) or "lockb" in each for each in found):
            return False
        if any(map(words.speaks_of_lock, found)):
            return True
        last = text_of(node).rpartition(".")[2].lower().strip("_#")
        if last in words.GENERIC or last in ("filepath", "dir", "lockp"):
            return words.speaks_of_lock(scope.name) or words.speaks_of_lock(scope.group)
        return False

    def _act(self, node: Node, scope: Scope) -> Act | None:
        func = field_of(node, "function")
        name = text_of(field_of(func, "property") or func)
        kind = KINDS.get(name, "")
        given = list((field_of(node, "arguments") or node).named_children)
        if not kind or not given:
            return None
        owner = text_of(field_of(func, "object"))
        rest = " ".join(text_of(each) for each in given[1:])
        target, facts = given[0], {name}
        if kind in FILES:
            kind = file_kind(kind, given, rest)
            if not name.endswith("Sync") and owner and not OF_FILES.search(owner):
                return None
            target = given[1] if kind == "create" and "link" in name else target
        elif kind == "alive" and name != "kill":
            kind = "" if name in self.named or owner else kind  # a library's
        elif kind == "alive":
            kind = "alive" if owner == "process" and [*map(text_of, given[1:2])] == ["0"] else ""
        elif kind == "command":
            kind = "alive" if BY_COMMAND.search(" ".join(map(text_of, given))) else ""
        elif kind == "on":
            kind = "on" if owner == "process" and len(given) > 1 else ""
        elif not CLIENT.search(owner):
            return None
        elif kind == "set":
            kind = "take" if NX.search(rest) else "set"
            facts |= {"timed"} if ENDS.search(rest) else set()
        if not kind:
            return None
        return Act(kind, node, self.key(target), target, scope, self.lockish(target, scope), facts)

    # --- what follows from what ----------------------------------------------------------------

    def callee(self, node: Node) -> Scope | None:
        """The function of the file that is called."""
        func = field_of(node, "function")
        owner = text_of(field_of(func, "object"))
        name = text_of(field_of(func, "property") or func)
        if owner not in ("", "this") and owner not in {scope.group for scope in self.scopes}:
            return None
        found = self.named.get(name, [])
        return found[0] if len(found) == 1 else None

    def behind(self, node: Node | None, depth: int = 4) -> list[Act]:
        """The acts that an expression rests on."""
        found: list[Act] = []
        seen: set[str] = set()
        acts = {act.node.id: act for act in self.acts}
        queue = [(node, depth)]
        while queue and len(found) < 40:
            each, left = queue.pop()
            for part in below(each):
                if part.id in acts:
                    found.append(acts[part.id])
                elif part.type == "call_expression" and left:
                    helper = self.callee(part)
                    if helper is not None and helper.name not in seen:
                        seen.add(helper.name)
                        queue.append((field_of(helper.node, "body"), left - 2 if left > 1 else 0))
                if part.type in ("identifier", "member_expression") and left:
                    name = text_of(part)
                    if name not in seen:
                        seen.add(name)
                        for value in self.values.get(name, [])[:3]:
                            if value.type not in FUNCTIONS:
                                queue.append((value, left - 1))
                            queue += [(each, left - 1) for each in failed_before(self, value, part)]
        return found

    def tests(self, act: Act) -> Iterator[tuple[Node, bool]]:
        """The conditions that an act stands under; False: it stands behind one that left."""
        inner = act.node
        for each in self.above(act.node):
            if each.id == act.holder.node.id and each.type != "program":
                return
            if each.type in ("if_statement", "ternary_expression", "while_statement"):
                test = field_of(each, "condition")
                if test is not None and not within(inner, test):
                    yield test, True
            if each.type == "binary_expression" and text_of(field_of(each, "operator")) in (
                "&&",
                "||",
            ):
                left = field_of(each, "left")
                if left is not None and not within(inner, left):
                    yield left, True
            if each.type in ("statement_block", "program"):
                for other in each.named_children:
                    if other.start_byte >= inner.start_byte:
                        break
                    if other.type == "if_statement" and leaves(field_of(other, "consequence")):
                        test = field_of(other, "condition")
                        if test is not None:
                            yield test, False


# What a `catch` says of the failure: a word for it, or what its code is compared with.
FLAGS = frozenset(
    "true false null undefined string number binary_expression unary_expression".split()
)


def failed_before(source: Source, value: Node, use: Node) -> list[Node]:
    """The body of the `try` in whose `catch` a flag gets its value, where the use is outside."""
    for each in source.above(value):
        if each.type in FUNCTIONS:
            break
        if each.type == "catch_clause" and each.parent is not None:
            body = field_of(each.parent, "body")
            flag = value.type in FLAGS
            return [body] if body is not None and flag and not within(use, each.parent) else []
    return []


def file_kind(kind: str, given: list[Node], rest: str) -> str:
    """How a call makes or opens a file; "" where that says nothing about a lock."""
    if kind in ("open", "write"):
        if re.search(r"['\"`]\w*x\w*['\"`]|O_EXCL", flags_of(given, kind)):
            return "create"
        return kind if kind == "write" or re.search(r"['\"]w", rest) else ""
    if kind == "mkdir":
        return "" if "recursive" in rest and "false" not in rest else "create"
    if kind == "link":
        return "create" if len(given) > 1 else ""
    return kind


def flags_of(given: list[Node], kind: str) -> str:
    """Where a call says how it opens."""
    rest = given[1:2] if kind == "open" else given[2:3]
    text = " ".join(text_of(each) for each in rest)
    if kind == "write":
        found = re.search(r"flags?\s*:\s*([^,}]+)", text)
        return found[1] if found else ""
    return text


def within(node: Node, other: Node) -> bool:
    return other.start_byte <= node.start_byte and node.end_byte <= other.end_byte


def leaves(node: Node | None) -> bool:
    """Does a block leave at its end?"""
    if node is None:
        return False
    last = (
        node.named_children[-1] if node.type == "statement_block" and node.named_children else node
    )
    if last.type in (
        "return_statement",
        "throw_statement",
        "continue_statement",
        "break_statement",
    ):
        return True
    return "process.exit(" in text_of(last) and last.type == "expression_statement"


def name_of(node: Node) -> str:
    """The name of a function: its own, or that of what it is given to."""
    own = field_of(node, "name")
    if own is not None:
        return text_of(own)
    outer = node.parent
    if outer is not None and outer.type in ("variable_declarator", "public_field_definition"):
        return text_of(field_of(outer, "name"))
    if outer is not None and outer.type == "pair":
        return text_of(field_of(outer, "key"))
    if outer is not None and outer.type == "assignment_expression":
        return text_of(field_of(outer, "left")).rpartition(".")[2]
    return ""
