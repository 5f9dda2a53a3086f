"""Two runs of a model, compared in all that they show: what `s.verify` is made of.

Read `verify` first.
"""
