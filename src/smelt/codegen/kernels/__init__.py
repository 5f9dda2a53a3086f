"""Kernels before they are machine code: loop nests that a person can read."""
