"""Gradients of graphs: reverse mode as one pass over the same graph, which gives a graph."""

from smelt.autodiff.activity import detach_islands, hidden_write
from smelt.autodiff.halves import Halves, halves, state_as_inputs
from smelt.autodiff.joint import Joint, joint_graph

__all__ = [
    "Halves",
    "Joint",
    "detach_islands",
    "halves",
    "hidden_write",
    "joint_graph",
    "state_as_inputs",
]
