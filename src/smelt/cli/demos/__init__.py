"""What `smelt demo` runs and shows.

Read `demo` first.
"""
