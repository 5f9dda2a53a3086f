"""How a call's arguments and results relate to the flat inputs and outputs of a graph.

Read `signature` first.
"""
