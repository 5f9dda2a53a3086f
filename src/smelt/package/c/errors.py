"""What an entry point that C cannot run is refused with."""

from smelt.diag import PackageError


def refused(name: str, why: str, fix: str) -> PackageError:
    """The error for an entry point that C cannot run."""
    return PackageError(f"{name} cannot be exported to C", why=why, fix=fix, code="S0704")
