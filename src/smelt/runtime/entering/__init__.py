"""The native entry of compiled objects: guards as a table that native code walks.

Read `entry`, then `encoding.entry_table`.
"""
