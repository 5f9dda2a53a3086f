"""The object that `smelt.compile` returns: what happens at a call, its table of rows, and its way in and out.

Read `compiled_dispatch` first: it is one call; `compiled_build` is what becomes of a call that no row serves.
"""
