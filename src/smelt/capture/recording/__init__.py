"""One native run, recorded: operators, lines, gradients, and from records to a graph.

Read `recorder` first.
"""
