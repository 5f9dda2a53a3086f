"""Operators between ranks, `dist.*`, and how tensors are divided.

Read `collectives` first.
"""
