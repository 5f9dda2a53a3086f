"""A mesh: ranks as the points of a grid with named axes, the last one fastest, as torch's DeviceMesh numbers them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from smelt.diag import SmeltError
from smelt.diag.records import record


@record
class Mesh:
    """axes: names and sizes, in order."""

    axes: tuple[tuple[str, int], ...]

    @staticmethod
    def of(given: Mapping[str, int] | str | Mesh) -> Mesh:
        """From {"dp": 2, "tp": 4}, or "dp=2,tp=4". Raises: SmeltError (S0642)."""
        if isinstance(given, Mesh):
            return given
        try:
            pairs = [p.split("=") for p in given.split(",")] if isinstance(given, str) else list(given.items())
            axes = tuple((str(name).strip(), int(size)) for name, size in pairs)
        except (ValueError, AttributeError):
            axes = ()
        if not axes or any(size < 1 or not name.isidentifier() for name, size in axes) or len(dict(axes)) < len(axes):
            raise SmeltError(
                f"{given!r} is no mesh", why="it has axes with different names and positive sizes",
                fix='{"dp": 2, "tp": 4}, or "dp=2,tp=4"', code="S0642",
            )  # fmt: skip
        return Mesh(axes)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return prod(size for _, size in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names."""
        return tuple(name for name, _ in self.axes)

    def extent(self, axis: str) -> int:
        """How many ranks stand along an axis. Raises: SmeltError (S0642) where there is none of the name."""
        found = dict(self.axes).get(axis)
        if found is None:
            raise SmeltError(
                f"the mesh has no axis {axis!r}", why=f"it has {', '.join(self.names)}",
                fix="name one of these, or build with another mesh", code="S0642",
            )  # fmt: skip
        return found

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands, by axis."""
        found: dict[str, int] = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return {name: found[name] for name in self.names}

    def rank_at(self, coordinates: Mapping[str, int]) -> int:
        """The rank that stands there."""
        rank = 0
        for name, size in self.axes:
            rank = rank * size + coordinates[name]
        return rank

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks along an axis through one."""
        here = self.coordinates(rank)
        return tuple(self.rank_at({**here, axis: i}) for i in range(self.extent(axis)))

    def where(self, rank: int) -> str:
        """A rank's place in words."""
        return ", ".join(f"{name} {i}" for name, i in self.coordinates(rank).items())

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)
