"""All rules, by code, with their words and their examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import distributed, kernel, local, scripts

if TYPE_CHECKING:
    from ..rule import Rule

RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in sorted(
        (*local.RULES, *kernel.RULES, *distributed.RULES, *scripts.RULES),
        key=lambda rule: rule.code,
    )
}
