"""Staging: a second run on shadows, in which what Python decides from data becomes control flow of the graph."""
