"""Gradients of graphs: reverse mode as one pass over the same graph, which gives a graph."""

from smelt.autodiff.joint import Joint, joint_graph

__all__ = ["Joint", "joint_graph"]
