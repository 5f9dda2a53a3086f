"""Staging: a second run on fake tensors, in which what Python decides from data becomes control flow of the graph.

Read `session`, which names the parts of a run, then `stage`; `domain` says in what scripts differ.
"""
