"""Python that becomes part of a user's program, and is captured like any other."""
