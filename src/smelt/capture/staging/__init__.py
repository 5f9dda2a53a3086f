"""Staging: a second run on fake tensors, in which what Python decides from data becomes control flow of the graph."""
