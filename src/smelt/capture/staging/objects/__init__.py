"""Python's own objects in a staged run: what is reachable, what changed, what is undone.

Read `heap` first.
"""
