"""`torch.compile(f, backend="smelt")`: what Dynamo cuts out of a program runs as Smelt's `compile` makes it.

Invariant: the answer is the module's own: where a result has gradients it runs itself, and each call is guarded by
Smelt beside Dynamo's own guards. Where Dynamo leaves sizes open, Smelt does so from the first call.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from smelt._torch.library.compiled_by_torch import being_compiled, given_to_torch
from smelt.capture.reads.reads_effects import CALLED_BY_TORCH
from smelt.compiler import compile
from smelt.compiler.doors.fx_in import with_control_flow
from smelt.compiler.torch_words import with_mode
from smelt.compiler.training.histories import requires_gradients
from smelt.diag import Options


def backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | Options | None = None,
) -> Callable[..., Any]:
    """The function that runs a graph of Dynamo's, found under the name "smelt" among torch's backends.

    mode, options: as of `smelt.compile`; torch.compile(mode=…, options=…) hands them on. Nothing runs before the first
    call.
    """
    chosen = with_mode(mode, options)
    are_parameters = [isinstance(value, torch.nn.Parameter) for value in example_inputs]
    is_open = any(isinstance(value, torch.SymInt) for value in example_inputs)
    owner = being_compiled()
    name = getattr(owner, "__name__", "graph" if owner is None else type(owner).__name__)
    served = _Served(gm, are_parameters, chosen, True if is_open else None, name)
    if owner is not None:
        with contextlib.suppress(TypeError):  # it cannot be referred to weakly
            _graphs.append((weakref.ref(owner), weakref.ref(served)))
    return served


_graphs: list[tuple[weakref.ref[Any], weakref.ref[_Served]]] = []


def graphs_of(compiled: Any) -> list[Any]:
    """What `smelt.compile` made of the graphs of an object that torch.compile returned, or compiled in place."""
    _graphs[:] = [pair for pair in _graphs if pair[0]() is not None and pair[1]() is not None]
    owner = given_to_torch(compiled)
    served = [graph for of, ref in _graphs if of() is owner and (graph := ref()) is not None]
    return [program for graph in served for program in graph.programs]


class _Served:
    """A graph of Dynamo's. Parameters come as arguments: while they are the very ones of the first call, they are part
    of the compiled program, so that it may pack them."""

    def __init__(
        self, gm: GraphModule, is_parameter: list[bool], options: Options, dynamic: bool | None, name: str
    ) -> None:
        self._name = name
        self._gm, self._options, self._dynamic = gm, options, dynamic
        self._source = with_control_flow(gm)
        self._parameters = [i for i, is_one in enumerate(is_parameter) if is_one]
        self._others = [i for i, is_one in enumerate(is_parameter) if not is_one]
        self._held: tuple[Any, ...] | None = None
        self._bound: Any = None
        self._general: Any = None
        self._is_without_gradients = False  # as a call of the graph itself has shown
        self.__name__ = "smelt_graph"

    def __call__(self, *args: Any) -> Any:
        if not self._is_without_gradients and torch.is_grad_enabled() and any(map(requires_gradients, args)):
            results = self._gm(*args)
            self._is_without_gradients = not any(map(requires_gradients, results))
            return results
        if not self._parameters:
            return self._unbound(args)
        given = tuple(args[i] for i in self._parameters)
        if self._held is None:
            self._held, self._bound = given, self._compile(self._with(self._parameters, given))
        if not all(map(operator.is_, given, self._held)):
            return self._unbound(args)
        return self._bound(*[args[i] for i in self._others])

    @property
    def programs(self) -> list[Any]:
        """The compiled objects that serve its calls."""
        return [program for program in (self._bound, self._general) if program is not None]

    def _unbound(self, args: tuple[Any, ...]) -> Any:
        if self._general is None:
            self._general = self._compile(self._with((), ()))
        return self._general(*args)

    def _with(self, places: Sequence[int], parameters: Sequence[torch.nn.Parameter]) -> DynamoGraph:
        """The graph with these parameters; reports name it by its class, as the program that torch was given."""
        bound: type[DynamoGraph] = type(self._name, (DynamoGraph,), {"__module__": __name__})
        return bound(self._source, places, parameters)

    def _compile(self, program: Any) -> Any:
        return compile(program, dynamic=self._dynamic, options=self._options)


CALLED_BY_TORCH.add(id(_Served.__call__.__code__))


class DynamoGraph(torch.nn.Module):
    """A graph with its parameters in their places."""

    def __init__(self, source: GraphModule, places: Sequence[int], parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__()
        self.source = source
        self.places = tuple(places)
        self.held = torch.nn.ParameterList(parameters)
        self.train(source.training)

    def forward(self, *others: Any) -> Any:
        """The graph's own answer, the parameters put back between the other arguments."""
        args = list(others)
        for place, parameter in zip(self.places, self.held, strict=True):
            args.insert(place, parameter)
        return self.source(*args)
