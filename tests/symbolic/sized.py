"""Programs lowered once for all sizes, for tests of such plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.capture import capture
from smelt.capture.dynamic.spec import Free, Spec
from smelt.codegen.llvm.walkers.executor import executor_object
from smelt.codegen.lower.symbolic import SymbolicLowered, lower_symbolic
from smelt.compiler.pipeline import functional_graph, optimized_graph
from smelt.diag import Options
from smelt.ir import Graph
from smelt.ir.types import type_symbols
from smelt.runtime.encoding.sizes import SizedExecutable
from smelt.runtime.executable import Executable
from smelt.runtime.machine.cache import code_cache

OPTIONS = Options.make({"strict": True})


@dataclass
class Sized:
    """A program with its plan for many sizes."""

    program: Callable[..., Any]
    graph: Graph
    lowered: SymbolicLowered
    lookup: Callable[[str, str], torch.Tensor]
    executable: SizedExecutable
    fixed: dict[tuple[int, int | None], Any]

    def answers(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What the plan gives, natively and by the interpreter of a plan filled for these sizes."""
        sizes = self.lowered.plan.sizes_of(args)
        filled = self.lowered.at(sizes)
        found = []
        for results in (self.executable.run(args), Executable(filled.plan, None).run(args)):
            found.append(self.lowered.recipes(sizes).rebuild(results, args, self.lookup))
        return found[0], found[1]

    def holds(self, args: Sequence[Any]) -> bool:
        """Whether the plan is for these sizes."""
        if any(args[i].shape[dim] != size for (i, dim), size in self.fixed.items()):
            return False
        return self.lowered.plan.holds(*self.lowered.plan.sizes_of(args))


def sized(program: Callable[..., Any], args: Sequence[Any], free: Spec, **options: Any) -> Sized:
    """Capture with free sizes, and lower for all of them."""
    chosen = Options.make({"strict": True, **options}) if options else OPTIONS
    with torch.no_grad():
        captured = capture(program, args, {}, name="program", target=program, dynamic=free)
    if captured.error is not None:
        raise captured.error
    assert captured.graph is not None and captured.sizes is not None
    facts = captured.sizes
    graph, _ = functional_graph(captured.graph, chosen)
    graph, _ = optimized_graph(graph, chosen, captured.state.lookup)
    used = {name for value in graph.values() for name in type_symbols(value.type)}
    origins = {name: origin for name, origin in facts.symbols.items() if name in used}
    rest = {name: origin.hint for name, origin in facts.symbols.items() if name not in used}
    fixed = {(facts.symbols[name].input, facts.symbols[name].dim): hint for name, hint in rest.items()}
    lowered = lower_symbolic(
        graph,
        captured.state.lookup,
        chosen,
        {name: origin.hint for name, origin in origins.items()},
        {name: origin.range for name, origin in origins.items()},
        holds=lambda *sizes: facts.holds(rest | dict(zip(origins, sizes, strict=True))),
    )
    code = executor_object(code_cache(chosen.cache_dir, chosen.cache_limit_mb))
    return Sized(program, graph, lowered, captured.state.lookup, lowered.executable(code), fixed)


def free(*names: Sequence[str | None]) -> Spec:
    """Free sizes by argument: `free("B_", ("B", None, "T"))`; `_` and None stay as they are."""
    return {
        (f"args[{i}]", axis): Free(name)
        for i, dims in enumerate(names)
        for axis, name in enumerate(dims)
        if name not in (None, "_")
    }


def flat(x: Any) -> list[Any]:
    """All results of a program."""
    return [y for item in x for y in flat(item)] if isinstance(x, tuple | list) else [x]


def assert_like_eager(one: Sized, args: Sequence[Any], tolerance: float = 1e-5) -> None:
    """Both runs answer as eager does: values, dtypes, sizes and strides."""
    with torch.no_grad():
        wanted = flat(one.program(*args))
    for found in map(flat, one.answers(args)):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            if not isinstance(b, torch.Tensor):
                assert a == b and type(a) is type(b)
                continue
            assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
