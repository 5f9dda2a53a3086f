"""All ranks in one process: what is proved, simulated and predicted.

Read `proof` first.
"""
