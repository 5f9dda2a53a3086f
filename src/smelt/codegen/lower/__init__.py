"""The lowering: a functional graph with static shapes becomes a plan of library calls, with a report."""

from smelt.codegen.lower.lowering import lower
from smelt.codegen.lower.report import CandidateReport, ChoiceReport, MemoryReport, NodeReport, Report
from smelt.codegen.lower.result import (
    Fresh,
    Lookup,
    Lowered,
    Mutation,
    OutputRecipe,
    Plain,
    Same,
    StateName,
    ViewOf,
)

__all__ = [
    "CandidateReport",
    "ChoiceReport",
    "Fresh",
    "Lookup",
    "Lowered",
    "MemoryReport",
    "Mutation",
    "NodeReport",
    "OutputRecipe",
    "Plain",
    "Report",
    "Same",
    "StateName",
    "ViewOf",
    "lower",
]
