"""Edits of a graph: the one rewriter, patterns, rules, and the driver that applies rules to a fixpoint."""

from smelt.rewrite.driver import Rule, apply_rules
from smelt.rewrite.pattern import Anything, Literal, Match, Op, Pattern, any_of, anything, literal, match, op
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
    "any_of",
    "anything",
    "apply_rules",
    "common_scope",
    "literal",
    "match",
    "op",
]
