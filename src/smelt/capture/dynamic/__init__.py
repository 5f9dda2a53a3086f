"""Captures whose sizes and numbers are symbols: what is free, what torch's shadows carry, and what Python sees."""
