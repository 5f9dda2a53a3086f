"""Gradients of graphs: reverse mode as one pass over the same graph, which gives a graph."""

from smelt.autodiff.activity import base_of, certain_values, detach_islands, hidden_write, is_view_of
from smelt.autodiff.halves import Halves, extract, halves, state_as_inputs
from smelt.autodiff.inside import computes_gradients, write_gradients
from smelt.autodiff.joint import Joint, joint_graph
from smelt.autodiff.recompute import recompute
from smelt.autodiff.versions import Watched, overwritten, watched

__all__ = [
    "Halves",
    "Joint",
    "Watched",
    "base_of",
    "certain_values",
    "computes_gradients",
    "detach_islands",
    "extract",
    "halves",
    "hidden_write",
    "is_view_of",
    "joint_graph",
    "overwritten",
    "recompute",
    "state_as_inputs",
    "watched",
    "write_gradients",
]
