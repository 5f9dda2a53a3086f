"""Whole layers and composites in simpler operators.

Read `decompose` first.
"""
