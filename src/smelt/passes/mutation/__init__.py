"""Values instead of mutation.

Read `functionalize` first.
"""
