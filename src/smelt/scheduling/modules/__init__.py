"""Steps on whole modules: how one runs, and other modules in its place.

Read `module_steps` first.
"""
