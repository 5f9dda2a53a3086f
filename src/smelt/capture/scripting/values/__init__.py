"""Python's values in a script: numbers, sequences, tensors, variables, and what they become.

Read `types` first.
"""
