"""What an element of each operator's result is made of.

Read `rules`, then `pointwise`.
"""
