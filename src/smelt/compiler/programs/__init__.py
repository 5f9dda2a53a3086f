"""Programs as objects: what `trace` and `script` return, how they are called, copied, saved and read from text.

Read `program` first.
"""
