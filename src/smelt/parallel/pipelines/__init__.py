"""Stages of a model, and the order in which microbatches go through them.

Read `pipeline` first.
"""
