"""Operations on vectors, as torch means them, and vector math of our own.

Read `lanes`, then `vmath`.
"""
