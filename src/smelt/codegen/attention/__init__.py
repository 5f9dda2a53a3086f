"""Attention as one kernel of our own: tiles of queries against packed keys and values, and a path for few queries."""

from smelt.codegen.attention.problem import Attention, Operand, Work, kernel_of

__all__ = ["Attention", "Operand", "Work", "kernel_of"]
