"""Edits of a graph: the one rewriter, patterns, rules, and the driver that applies rules to a fixpoint."""

from smelt.rewrite.driver import Rule, apply_rules
from smelt.rewrite.pattern import Anything, Literal, Match, Op, Pattern, any_of, anything, literal, match, op
from smelt.rewrite.regions import (
    add_carried,
    add_result,
    carried_params,
    copy_nodes,
    drop_results,
    first_carried,
    known_range,
)
from smelt.rewrite.rewriter import Event, Rewriter, common_scope

__all__ = [
    "Anything",
    "Event",
    "Literal",
    "Match",
    "Op",
    "Pattern",
    "Rewriter",
    "Rule",
    "add_carried",
    "add_result",
    "any_of",
    "anything",
    "apply_rules",
    "carried_params",
    "common_scope",
    "copy_nodes",
    "drop_results",
    "first_carried",
    "known_range",
    "literal",
    "match",
    "op",
]
