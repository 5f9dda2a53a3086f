"""Steps on many ranks, and what they will take there.

Read `parallel_steps` first.
"""
