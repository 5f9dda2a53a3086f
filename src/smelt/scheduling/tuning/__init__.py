"""Measured choices: knobs of scheduling functions, and the search over them.

Read `tuning` first.
"""
