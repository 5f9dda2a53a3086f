"""Fusion: which nodes of a graph become one loop nest, and what that nest computes."""
