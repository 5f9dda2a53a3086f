"""Lowering of graphs whose sizes are symbols: once for all sizes, or for given ones."""

from smelt.codegen.lower.symbolic.lowering import SymbolicLowered, lower_symbolic
from smelt.codegen.lower.symbolic.substitute import specialize, substituted, symbolized
from smelt.codegen.lower.symbolic.template import NotSymbolic

__all__ = ["NotSymbolic", "SymbolicLowered", "lower_symbolic", "specialize", "substituted", "symbolized"]
