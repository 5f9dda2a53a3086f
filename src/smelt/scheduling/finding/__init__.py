"""Patterns and the search for them: where in a program's dataflow something stands.

Read `patterns`, then `search`.
"""
