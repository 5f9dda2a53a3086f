"""A module that a test's program imports while it runs."""


def factor() -> int:
    """A number."""
    return 2
