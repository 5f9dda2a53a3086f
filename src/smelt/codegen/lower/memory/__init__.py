"""Where the values of a plan are: the arena, what is written in place, what leaves the program.

Read `arena`, then `in_place`.
"""
