"""Attention that is spelled out, as one operator.

Read `attention` first; `attention_walk` knows the operators, also for schedules.
"""
