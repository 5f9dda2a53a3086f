"""Attention as one kernel of our own: tiles of queries against packed keys and values, and a path for few queries.

Its gradients are one kernel, too.
"""

from smelt.codegen.attention.problem import Attention, Backward, Operand, Work, backward_of, kernel_of

__all__ = ["Attention", "Backward", "Operand", "Work", "backward_of", "kernel_of"]
