"""How torch is watched while a program is recorded or staged: dispatcher, modes, patches, tensors without data.

Read `dispatch` first.
"""
