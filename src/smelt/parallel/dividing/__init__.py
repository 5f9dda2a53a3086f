"""A program as one rank has it: placements, marks of a schedule, partitions.

Read `parted`, then `partition` (straight code) and `control` (branches and loops).
"""
