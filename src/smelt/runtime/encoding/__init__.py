"""A plan as the words that the native executor walks, for one size or many.

Read `table`, then `encode`.
"""
