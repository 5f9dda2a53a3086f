"""What a run reads and changes outside itself: attributes, globals, cells, containers, and what it does besides.

Read `reads` first.
"""
