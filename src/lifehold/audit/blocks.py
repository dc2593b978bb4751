"""What a block of statements does: leaves, returns, catches, calls."""

from __future__ import annotations

import ast

from .model import calls_in, leaves, nodes, text_of


def names_of(handler: ast.ExceptHandler) -> set[str]:
    """What a handler catches; a bare one catches BaseException."""
    if handler.type is None:
        return {"BaseException"}
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {text_of(each).removeprefix("builtins.") or "?" for each in kinds}


def exits(block: list[ast.stmt]) -> bool:
    """Does a block leave, at its end or somewhere in it?"""
    if leaves(block):
        return True
    for stmt in block:
        for node in nodes(stmt):
            if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue):
                return True
            if isinstance(node, ast.Call) and text_of(node.func) in (
                "sys.exit",
                "exit",
                "os._exit",
            ):
                return True
    return False


def returned(block: list[ast.stmt]) -> list[ast.expr | None]:
    """What a block returns."""
    return [n.value for stmt in block for n in nodes(stmt) if isinstance(n, ast.Return)]


def is_constant(node: ast.expr | None, *values: object) -> bool:
    return isinstance(node, ast.Constant) and any(node.value is v for v in values)


def constants_in(node: ast.AST) -> list[ast.Constant]:
    return [n for n in nodes(node) if isinstance(n, ast.Constant)]


def calls_of(block: list[ast.stmt]) -> list[ast.Call]:
    return [call for stmt in block for call in calls_in(stmt)]
