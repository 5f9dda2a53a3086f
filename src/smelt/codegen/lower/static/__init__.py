"""Values that are known before the run: folded, packed, written down for another process.

Read `statics` first.
"""
