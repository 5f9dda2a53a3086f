"""Operators of Python's own values, `py.*`.

Read `python_ops` first.
"""
