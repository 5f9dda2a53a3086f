"""`Dim`: a named size that stays free, with the range that it lies in; and how the entries of a user are read."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from smelt._torch.library.export_dims import export_dim
from smelt.diag import SmeltError

CODE = "S0304"


@dataclass(frozen=True, slots=True)
class Dim:
    """A size, or a number, that stays free under this name: `smelt.Dim("B", min=1, max=64)`.

    Equal names are equal sizes. min, max: the values that it may have, both included; left out, any from 1 on (of a
    number: any).
    Raises: SmeltError (S0304) for a name that is no identifier or a range that is empty.
    """

    name: str
    _: KW_ONLY
    min: int | None = None
    max: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise bad_shapes(f"a size cannot be called {self.name!r}", "names of sizes are identifiers", "rename it")
        for bound in (self.min, self.max):
            if bound is not None and type(bound) is not int:
                raise bad_shapes(f"{self.name} cannot end at {bound!r}", "bounds are ints", "give an int or None")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise bad_shapes(
                f"no size is {self.name}: from {self.min} to {self.max}", "min is above max", "exchange the bounds"
            )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Entry:
    """What is wished of one size or number.

    kind: "named" (it must stay free), "auto" (if it can) or "static". only: the one value of a static one, if given.
    """

    kind: Literal["named", "auto", "static"]
    name: str | None = None
    low: int | None = None
    high: int | None = None
    only: int | None = None


def read_entry(value: Any, where: str) -> Entry:
    """An entry as a user writes it: a name, a `Dim`, torch.export's `Dim`, a hint of its, a number or None.

    Raises: SmeltError (S0304) for anything else; where: which entry that is.
    """
    if isinstance(value, str):
        return Entry("named", Dim(value).name)
    if isinstance(value, Dim):
        return Entry("named", value.name, value.min, value.max)
    if value is None:
        return Entry("static")
    if type(value) is int:
        return Entry("static", only=value)
    found = export_dim(value)
    if found is None or found.kind == "unknown":
        raise bad_shapes(
            f"{where} cannot be {value!r}",
            "a size is a name, a smelt.Dim, a torch.export.Dim, Dim.AUTO, Dim.STATIC, an int or None"
            + (", not computed from others" if found is not None else ""),
            "write, for example, {0: 'B'}" if found is None else "give it a name of its own",
        )
    if found.kind == "named":
        # torch's own default says nothing.
        return Entry("named", found.name, found.min or None, found.max)
    return Entry("static" if found.kind == "STATIC" else "auto", None, found.min, found.max)


def bad_shapes(what: str, why: str, fix: str) -> SmeltError:
    """The error of `dynamic_shapes` that do not fit."""
    return SmeltError(what, why=why, fix=fix, code=CODE)
