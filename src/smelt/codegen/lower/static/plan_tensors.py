"""How the tensors that a plan keeps are made again, in another process and from whatever the state holds there.

    parameter read as it lies     Live        the tensor that stands there
    weight in panels, coded too   Panels      its program, then the kernel that packs or codes
    weight of a convolution       PackedFilters    its program, then the form that its kernel reads
    folded of parameters          Computed    its program
    no state in it                Content     its elements

Invariant: nothing here holds contents of the state, so that a plan which is kept with these serves other contents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.lower.products.packed_weight import Form, packed_weight, panels_by_torch
from smelt.codegen.lower.products.weight_packing import Fills
from smelt.codegen.lower.result import Lookup
from smelt.codegen.lower.static.static_program import Content, Read, StaticProgram, program_of, read
from smelt.codegen.lower.static.statics import Statics
from smelt.diag import Options
from smelt.diag.records import record
from smelt.ir import Value
from smelt.runtime.filters import Filters


@record
class Live:
    """The live tensor itself."""

    state: Read


@record
class Computed:
    """What a program over the state gives."""

    program: StaticProgram


@record
class Panels:
    """The weight that a program gives, [n, k] or [k, n] where `is_transposed`, in panels.

    is_state: it lies in the memory of the program's own tensor.
    """

    program: StaticProgram
    is_transposed: bool
    form: Form
    is_state: bool


@record
class PackedFilters:
    """The weight that a program gives, as the kernel of a convolution reads it; sizes: [cout, cin / groups, kh, kw]."""

    program: StaticProgram
    filters: Filters
    sizes: tuple[int, ...]

    def tensor(self, state: Lookup) -> torch.Tensor:
        """The weight for the present contents of the state. Raises: OtherState."""
        return self.filters.packed(self.program.run(state).detach().reshape(self.sizes))


Made: TypeAlias = Live | Computed | Panels | PackedFilters | Content
HowMade: TypeAlias = Callable[[], Made | None]


def computed(statics: Statics, value: Value) -> Computed | None:
    """A static value; None where its program cannot be told."""
    program = program_of(statics, value)
    return None if program is None else Computed(program)


def made_now(made: Computed | Panels | PackedFilters, state: Lookup) -> torch.Tensor:
    """The tensor for the present contents of the state, by torch's operators alone. Raises: OtherState."""
    match made:
        case PackedFilters():
            return made.tensor(state)
        case Panels(form=form):
            weight = made.program.run(state).detach()
            return panels_by_torch(weight.t() if made.is_transposed else weight, form)
    return made.program.run(state).detach()


def made_again(
    held: Mapping[int, Made], state: Lookup, isa: Isa | None, options: Options, fills: Fills
) -> dict[int, torch.Tensor]:
    """The tensors by slot, complete when `fills` are done. Raises: OtherState."""
    found: dict[int, torch.Tensor] = {}
    for slot, made in held.items():
        match made:
            case Live(state=wanted):
                found[slot] = read(wanted, state)
            case Computed(program=program):
                found[slot] = program.run(state).detach()
            case Content():
                found[slot] = made.tensor()
            case PackedFilters():
                found[slot] = made.tensor(state)
            case Panels(program=program, is_transposed=is_transposed, form=form, is_state=is_state):
                assert isa is not None, "it is part of the key of a cached plan"
                weight = program.run(state).detach()
                weight = weight.t() if is_transposed else weight
                found[slot] = packed_weight(weight, form, isa, options, fills, is_state=is_state)
    return found
