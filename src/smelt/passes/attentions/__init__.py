"""Attention that is spelled out, as one operator.

Read `attention` first.
"""
