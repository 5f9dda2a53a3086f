"""What a plan leaves to Python, and Python's own numbers and lists in it.

Read `python_nodes` first.
"""
