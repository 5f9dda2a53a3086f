"""What is set on a tensor itself, beside its elements, on ways that a staging run tries: the user's tensors stay."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)  # all of these run as partitions, or as they are
        yield


class Layer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        for number, parameter in enumerate(self.parameters()):
            parameter.copy_(torch.arange(1.0, parameter.numel() + 1).reshape(parameter.shape) / (number + 2))
        self.buffer: Tensor
        self.register_buffer("buffer", torch.arange(4.0).reshape(2, 2))


def _vector(layer: Layer, y: Tensor) -> None:
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(layer.parameters()) * 0.9, layer.parameters())


def _accumulate(layer: Layer, y: Tensor) -> None:
    grad = layer.weight.grad
    layer.weight.grad = y.detach() if grad is None else grad + y


ACTS: dict[str, Callable[[Layer, Tensor], Any]] = {
    "data": lambda layer, y: setattr(layer.weight, "data", layer.weight * 0.9),
    "data of a buffer": lambda layer, y: setattr(layer.buffer, "data", y * 2),
    "gradient": lambda layer, y: setattr(layer.weight, "grad", y * 2),
    "more gradient": _accumulate,
    "no gradient": lambda layer, y: setattr(layer.weight, "grad", None),
    "flag": lambda layer, y: setattr(layer.weight, "requires_grad", False),
    "flag by method": lambda layer, y: layer.weight.requires_grad_(False),
    "flag of a buffer": lambda layer, y: layer.buffer.requires_grad_(True),
    "attribute": lambda layer, y: setattr(layer.buffer, "note", y),
    "class": lambda layer, y: setattr(layer.buffer, "__class__", nn.Parameter),
    "hook of a tensor": lambda layer, y: layer.weight.register_hook(lambda grad: grad * 2),
    "hook of a module": lambda layer, y: layer.register_forward_hook(lambda *given: None),
    "dtype": lambda layer, y: layer.double(),
    "vector": _vector,
}


def program_of(layer: Layer, name: str, on_one_way: bool) -> Callable[[Tensor], Tensor]:
    def program(x: Tensor) -> Tensor:
        y = nn.functional.linear(x.to(layer.weight.dtype), layer.weight, layer.bias) + layer.buffer.sum()
        if not on_one_way or x.sum() > 0:
            ACTS[name](layer, y)
        return y.float() + 1

    return program


def state(layer: Layer) -> Any:
    found = []
    for tensor in (*layer.parameters(), *layer.buffers()):
        notes = {key: value.tolist() for key, value in vars(tensor).items() if key == "note"}
        grad = None if tensor.grad is None else tensor.grad.tolist()
        hooks = len(tensor._backward_hooks or ())
        found.append((type(tensor), tensor.dtype, tensor.tolist(), tensor.requires_grad, grad, notes, hooks))
    return found, len(layer._forward_hooks)


X = torch.ones(2, 2)


@pytest.mark.spread(10)
@pytest.mark.parametrize("on_one_way", [False, True])
@pytest.mark.parametrize("name", ACTS)
def test_compiled(name: str, on_one_way: bool) -> None:
    for xs in ([X, -X, X], [-X, X, X, -X]):
        one, other = Layer(), Layer()
        program, compiled = program_of(one, name, on_one_way), smelt.compile(program_of(other, name, on_one_way))
        for x in xs:
            assert torch.equal(compiled(x), program(x))
            assert state(other) == state(one)


@pytest.mark.spread(10)
@pytest.mark.parametrize("on_one_way", [False, True])
@pytest.mark.parametrize("name", ACTS)
def test_making_a_script_changes_nothing(name: str, on_one_way: bool) -> None:
    layer = Layer()
    before = state(layer)
    try:
        scripted = smelt.script(program_of(layer, name, on_one_way))
    except smelt.CaptureError as error:
        assert error.where is not None and error.where.file == __file__
        assert state(layer) == before
        return
    assert state(layer) == before
    one = Layer()
    program = program_of(one, name, on_one_way)
    for x in (X, -X, X):
        assert torch.equal(scripted(x), program(x))
        assert state(layer) == state(one)


def test_a_hook_that_is_taken_away_again_is_no_change() -> None:
    layer = Layer()

    def program(x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = layer.register_forward_hook(lambda module, args, out: seen.append(out))
        y = layer(x)
        handle.remove()
        return y + seen[0]

    compiled = smelt.compile(program, options={"measure": False})
    for x in (X, -X, X):
        assert torch.equal(compiled(x), program(x)) and not layer._forward_hooks
    assert compiled.stats().builds == 1 and compiled.stats().fallbacks == {}


# --- tensors that the program makes: one way does not see what another one did ---------------------------------------


def _named(o: Tensor) -> None:
    o.k = 2  # type: ignore[attr-defined]


def _unnamed(o: Tensor) -> None:
    del o.k


def _longer(o: Tensor) -> None:
    o.items.append(7)  # type: ignore[attr-defined]


INSIDE: dict[str, Callable[[Tensor], Any]] = {
    "attribute": _named,
    "attribute that goes": _unnamed,
    "dictionary": lambda o: vars(o).update(k=3, m=4),
    "list": _longer,
    "flag": lambda o: o.requires_grad_(),
    "class": lambda o: setattr(o, "__class__", nn.Parameter),
    "gradient": lambda o: setattr(o, "grad", torch.ones(1)),
    "hook": lambda o: o.requires_grad_().register_hook(lambda grad: grad),
    "data": lambda o: setattr(o, "data", torch.ones(1)),
}


def _seen(o: Tensor) -> Any:
    notes = {name: vars(o)[name] for name in ("k", "m", "items") if name in vars(o)}
    return type(o).__name__, notes, o.requires_grad, o.grad is None, len(o._backward_hooks or ())


@pytest.mark.spread(10)
@pytest.mark.parametrize("make", [smelt.compile, smelt.script])
@pytest.mark.parametrize("is_parameter", [False, True])
@pytest.mark.parametrize("name", INSIDE)
def test_a_tensor_that_the_program_makes(name: str, is_parameter: bool, make: Any) -> None:
    def program(x: Tensor) -> Any:
        o: Any = torch.zeros(1)
        if is_parameter:
            o = nn.Parameter(o, requires_grad=False)
        o.k, o.items = 1, []
        if x.sum() > 0:
            INSIDE[name](o)
        return x + 1, str(_seen(o))

    try:
        made = make(program)
    except smelt.CaptureError as error:
        assert make is smelt.script and error.code != "S0902"  # an honest refusal
        return
    for x in (X, -X, 2 * X, -2 * X):
        assert str(made(x)) == str(program(x))


def test_a_list_of_an_attribute_grows_in_a_loop() -> None:
    def program(x: Tensor) -> Any:
        o: Any = torch.zeros(1)
        o.items = []
        for v in x:
            if v > 0:
                o.items.append(v * 2)
        return sum(o.items), len(o.items)

    compiled = smelt.compile(program)
    for values in ([1.0, 2.0, 3.0], [-1.0, 2.0, -3.0], [-1.0, -2.0, -3.0], [1.0, -2.0, 3.0]):
        assert str(compiled(torch.tensor(values))) == str(program(torch.tensor(values)))


HELD = torch.zeros(1)


def test_a_list_of_an_attribute_outside() -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            HELD.items.append(1)  # type: ignore[attr-defined]
        return x + len(HELD.items)  # type: ignore[attr-defined]

    found = []
    for run in (program, smelt.compile(program)):
        HELD.items = []  # type: ignore[attr-defined]
        found.append([(run(x).tolist(), list(HELD.items)) for x in (X, -X, X, -X, X)])  # type: ignore[attr-defined]
    assert found[0] == found[1]


def test_a_result_keeps_its_attributes() -> None:
    def program(x: Tensor) -> Tensor:
        o: Any = x + 1
        o.k = 5
        return o  # type: ignore[no-any-return]

    compiled = smelt.compile(program)
    for x in (X, -X, 2 * X):
        result: Any = compiled(x)
        assert torch.equal(result, x + 1) and result.k == 5
    with pytest.raises(smelt.CaptureError, match="attribute that the program gave it, `k`"):
        smelt.script(program)


def test_an_argument_is_itself_in_a_result_where_sizes_are_free() -> None:
    def program(x: Tensor) -> Any:
        return [x, x.sum()]

    compiled = smelt.compile(program)
    for n in (4, 9, 9, 3):
        x = torch.ones(n)
        given, total = compiled(x)
        assert given is x
        assert float(total) == n
