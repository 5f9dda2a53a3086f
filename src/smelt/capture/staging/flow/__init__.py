"""Branches and loops whose tests depend on data: both arms, bodies, and what they leave.

Read `control`, then `branches` and `loop_statements`.
"""
