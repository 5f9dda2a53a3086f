"""Programs whose sizes and numbers are free: how users name them, how they are captured, and their plans.

Read `sized_unit` first.
"""
