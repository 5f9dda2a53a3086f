"""What is raised for a file that is no ingot, or a broken one: it names the file's entry and the rule."""

from __future__ import annotations

from smelt.diag import PackageError


def broken(entry: str, why: str) -> PackageError:
    """An entry breaks a rule of the format."""
    return PackageError(
        f"the ingot cannot be read: {entry}",
        why=why,
        fix="save the program again, or get the file again: it is damaged, or it is no ingot",
        code="S0701",
    )


def newer(what: str, found: int, known: int) -> PackageError:
    """The file is of a later version of Smelt."""
    return PackageError(
        f"the ingot cannot be read: its {what} has version {found}",
        why=f"this Smelt reads versions up to {known}",
        fix="update Smelt, or save the program with this version of it",
        code="S0701",
    )


def unsaved(what: str, why: str, fix: str) -> PackageError:
    """A program that has no form in a file."""
    return PackageError(what, why=why, fix=fix, code="S0702")
