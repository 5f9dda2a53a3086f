"""Graphs of one rank: what is sent when.

Read `overlap` first.
"""
