"""What must hold for a recorded program to stand for a call: each kind of guard is one record.

Read `guards` first, then `guard_kinds` (all kinds and their order), `fact_kinds` (what the program reads by itself) and
`argument_kinds`; `words` is what native code walks.
"""
