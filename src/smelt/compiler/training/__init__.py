"""Programs with gradients: a graph as one node of autograd.

Read `trainable` first.
"""
