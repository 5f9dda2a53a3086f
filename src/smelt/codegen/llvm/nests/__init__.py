"""Loop nests as LLVM text.

Read `nest_ir`, then `nest_loops`.
"""
