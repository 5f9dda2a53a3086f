"""One native run, recorded: operators, lines, gradients, and from records to a graph.

Read `recorder` first; what it keeps is in `tensor_slots`.
"""
