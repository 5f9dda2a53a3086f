"""Convolutions and attention in a plan.

Read `own_convolution` and `own_attention` first.
"""
