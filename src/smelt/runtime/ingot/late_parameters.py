"""The parameters of a module, some of which are made when somebody looks at them.

Invariant: whoever reads one, through the module or its `_parameters`, gets the same Parameter each time, and finds
nothing else than in a module whose parameters were all there; writing replaces one that nobody has read.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any, TypeAlias

from torch.nn import Parameter

Make: TypeAlias = Callable[[], Parameter]


class LateParameters(dict[str, Parameter | None]):
    """As `Module._parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self._late: dict[str, Make] = {}

    def put_late(self, name: str, make: Make) -> None:
        """Have `make` called where the parameter is first asked for."""
        super().__setitem__(name, None)
        self._late[name] = make

    def is_late(self, name: str) -> bool:
        """Whether nobody has asked for it."""
        return name in self._late

    def __getitem__(self, name: str) -> Parameter | None:
        make = self._late.get(name)
        if make is not None:
            super().__setitem__(name, make())
            self._late.pop(name, None)
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: Parameter | None) -> None:
        super().__setitem__(name, value)
        self._late.pop(name, None)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._late.pop(name, None)

    # What dict does in C would not come by: it has these values from here.

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 -- this is `get`

    def items(self) -> ItemsView[str, Parameter | None]:  # type: ignore[override]
        return ItemsView(self)

    def values(self) -> ValuesView[Parameter | None]:  # type: ignore[override]
        return ValuesView(self)

    def pop(self, name: str, *default: Any) -> Any:
        if name not in self and default:
            return default[0]
        found = self[name]
        del self[name]
        return found

    def copy(self) -> dict[str, Parameter | None]:
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)
