"""One file as libcst sees it, what is asked of its nodes, and how changes are put together.

Rule: what is not changed is written back byte by byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Block = cst.IndentedBlock | cst.Module
    Swap = Callable[[cst.CSTNode], cst.CSTNode]
    Reblock = Callable[["Body"], "Body"]

Body = list[cst.BaseStatement]


class Spot(NamedTuple):
    """Where a rule found something: lines from 1, columns in characters from 0."""

    line: int
    column: int
    spans: tuple[int, ...]


Node = TypeVar("Node", bound=cst.CSTNode)


class SourceTree:
    """One file as libcst sees it: every blank and comment is in its place.

    `at` finds nodes; `swap`, `reblock` and `preface` collect changes; `changed` applies them.
    """

    def __init__(self, data: bytes) -> None:
        self.module = cst.parse_module(data)
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        self.positions = wrapper.resolve(PositionProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        self.swaps: dict[cst.CSTNode, Swap] = {}
        self.blocks: dict[cst.CSTNode, Reblock] = {}
        self.footers: dict[cst.CSTNode, list[cst.EmptyLine]] = {}  # behind a block's statements

    def line(self, node: cst.CSTNode) -> int:
        return int(self.positions[node].start.line)

    def at(self, kind: type[Node], line: int, column: int = -1) -> Iterator[Node]:
        """The nodes of a kind that begin there, the outer before the inner."""
        for node, place in self.positions.items():
            if isinstance(node, kind) and place.start.line == line:
                if column < 0 or place.start.column == column:
                    yield node

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node).strip()

    def above(self, node: cst.CSTNode, kind: type[Node]) -> Node | None:
        """The nearest node of a kind around this one."""
        each = self.parents.get(node)
        while each is not None and not isinstance(each, kind):
            each = self.parents.get(each)
        return each

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """The line that is this expression and nothing else."""
        line = self.above(node, cst.SimpleStatementLine)
        return line if line is not None and len(line.body) == 1 else None

    def stands_alone(self, call: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """The statement of a call whose result nobody takes."""
        each = self.parents.get(call)
        if isinstance(each, cst.Await):
            each = self.parents.get(each)
        return self.statement(call) if isinstance(each, cst.Expr) else None

    def block(self, node: cst.CSTNode) -> tuple[Block, int] | None:
        """The block that holds a statement, and its place there."""
        holder = self.parents.get(node)
        if isinstance(holder, cst.IndentedBlock | cst.Module):
            return holder, list(holder.body).index(cast("cst.BaseStatement", node))
        return None

    def within(self, node: cst.CSTNode, kind: type[Node]) -> Iterator[Node]:
        """Everything of a kind below a node."""
        stack: list[cst.CSTNode] = [node]
        while stack:
            each = stack.pop()
            if isinstance(each, kind):
                yield each
            stack.extend(reversed(each.children))

    # --- changes -------------------------------------------------------------------------------

    def swap(self, node: cst.CSTNode, new: Swap) -> None:
        self.swaps[node] = new

    def reblock(self, block: Block, new: Reblock) -> None:
        self.blocks[block] = new

    def drop(self, node: cst.CSTNode) -> bool:
        """Take a statement out of its block; its comments stay where it stood."""
        place = self.block(node)
        if place is None:
            return False
        block, number = place
        kept = [
            cst.EmptyLine(comment=comment.with_changes())
            for comment in self.within(node, cst.Comment)
        ]
        following = number + 1 < len(block.body)

        def without(body: Body) -> Body:
            after = body[number + 1 :]
            if kept and after:
                first = after[0]
                lines = cast("Sequence[cst.EmptyLine]", getattr(first, "leading_lines", ()))
                after[0] = first.with_changes(leading_lines=[*kept, *lines])
            return [*body[:number], *after]

        if kept and not following:
            self.footers[block] = [*kept, *block.footer]
        self.reblock(block, without)
        return True

    def preface(self, text: str) -> bool:
        """A statement of the module's own, behind the imports at its head.

        An import that comes later may stand behind what uses the statement.
        """
        number = 0
        for place, each in enumerate(self.module.body):
            small = each.body if isinstance(each, cst.SimpleStatementLine) else ()
            docstring = place == 0 and len(small) == 1 and isinstance(small[0], cst.Expr)
            imports = bool(small) and all(isinstance(s, cst.Import | cst.ImportFrom) for s in small)
            if not (docstring or imports):
                break
            number = place + 1
        made = cst.parse_statement(text, self.module.config_for_parsing)
        if number:
            made = made.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        before = self.blocks.get(self.module)

        def inserted(body: Body) -> Body:
            size = len(body)
            body = before(body) if before else body
            return [*body[:number], made, *body[number:]] if len(body) >= size - 1 else body

        self.reblock(self.module, inserted)
        return True

    def changed(self) -> bytes:
        """The file with all changes."""
        return self.module.visit(_Changes(self)).bytes


class _Changes(cst.CSTTransformer):
    def __init__(self, tree: SourceTree) -> None:
        super().__init__()
        self.tree = tree

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        node = updated_node
        reblock = self.tree.blocks.get(original_node)
        if reblock is not None and isinstance(node, cst.IndentedBlock | cst.Module):
            node = node.with_changes(body=reblock(list(node.body)))
        footer = self.tree.footers.get(original_node)
        if footer is not None:
            node = node.with_changes(footer=footer)
        swap = self.tree.swaps.get(original_node)
        return swap(node) if swap is not None else node


# --- what cures ask ----------------------------------------------------------------------------


def name_of(call: cst.Call) -> str:
    """The last word of what is called."""
    func = call.func
    if isinstance(func, cst.Attribute):
        return func.attr.value
    return func.value if isinstance(func, cst.Name) else ""


def owner_of(tree: SourceTree, call: cst.Call) -> str:
    return tree.code(call.func.value) if isinstance(call.func, cst.Attribute) else ""


def plain(call: cst.Call) -> list[cst.BaseExpression] | None:
    """The arguments of a call that has no others than those by place."""
    given = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    return given if len(given) == len(call.args) else None


def call_at(tree: SourceTree, place: Spot, *names: str) -> cst.Call | None:
    found = tree.at(cst.Call, place.line, place.column)
    return next((each for each in found if name_of(each) in names), None)


def call_on(tree: SourceTree, line: int, *names: str) -> cst.Call | None:
    return next((each for each in tree.at(cst.Call, line) if name_of(each) in names), None)


def argument(value: cst.BaseExpression, keyword: str = "") -> cst.Arg:
    return cst.Arg(
        value,
        keyword=cst.Name(keyword) if keyword else None,
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        if keyword
        else cst.MaybeSentinel.DEFAULT,
    )


def names_in(tree: SourceTree, node: cst.CSTNode) -> set[str]:
    return {each.value for each in tree.within(node, cst.Name)}


def assigned_between(tree: SourceTree, first: int, last: int) -> set[str]:
    """The names that are given something on these lines."""
    found: set[str] = set()
    for each in tree.positions:
        if not first <= tree.line(each) <= last:
            continue
        if isinstance(each, cst.AsName):
            found |= names_in(tree, each.name)
        elif isinstance(
            each, cst.AssignTarget | cst.NamedExpr | cst.AugAssign | cst.AnnAssign | cst.For
        ):
            found |= names_in(tree, each.target)
    return found


def still(tree: SourceTree, node: cst.BaseExpression) -> bool:
    """Is this the same wherever it is asked: constants, names, sums of them?"""
    kinds = (cst.Call, cst.Await, cst.Yield, cst.NamedExpr, cst.Lambda, cst.Subscript)
    return not any(True for kind in kinds for _each in tree.within(node, kind))
