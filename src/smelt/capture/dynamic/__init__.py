"""Captures whose sizes and numbers are symbols: what is free, what torch's fake tensors carry, and what Python sees."""
