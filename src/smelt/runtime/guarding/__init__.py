"""What must hold for a recorded program to stand for a call.

Read `guards` first.
"""
