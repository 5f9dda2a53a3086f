"""A function in pieces: which statements stay Python, which become functions of their own, and its code around them."""
