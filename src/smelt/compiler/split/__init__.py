"""Programs that cannot be one graph, in partitions: what of them is compiled, and what runs in Python.

Read `splitting` first.
"""
