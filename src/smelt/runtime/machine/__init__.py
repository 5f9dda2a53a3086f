"""What the machine gives: its instruction set, machine code in memory and on disk, threads, memory.

Read `loader` first.
"""
