"""Loops, and what moves out of them.

Read `hoist_invariants` first.
"""
