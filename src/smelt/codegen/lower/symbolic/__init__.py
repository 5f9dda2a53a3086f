"""Lowering of graphs whose sizes are symbols: once for all sizes, or for given ones."""

from smelt.codegen.lower.symbolic.substitute import specialize, substituted, symbolized

__all__ = ["specialize", "substituted", "symbolized"]
