"""Fake tensors and what operators give on them.

Read `fake_tensors` first.
"""
