# ruff: noqa: E501 (tables of program text)
"""Random programs: statements are drawn one by one and run as they are drawn, so that nearly all of them are valid."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.differential.programs import Program
from tests.differential.tensors import FLOATS, INTEGERS, LAYOUTS, tensor

LARGEST = 3000  # elements of any value

_SHAPES = ((), (1,), (3,), (0,), (2, 3), (4, 4), (3, 1), (1, 5), (2, 0, 3), (2, 3, 4), (1, 4, 1), (2, 2, 3, 3), (8, 17))
_UNARY = (
    "neg", "abs", "sin", "cos", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "erf", "reciprocal", "floor",
    "ceil", "round", "trunc", "sign", "square", "isnan", "isinf", "isfinite", "logical_not", "expm1", "log1p", "frac",
    "sinh", "atan", "exp2", "log2", "signbit", "nan_to_num", "positive", "bitwise_not", "sgn", "erfc", "angle",
)  # fmt: skip
_FUNCTIONAL = (
    "F.gelu({0})", "F.gelu({0}, approximate='tanh')", "F.silu({0})", "F.relu6({0})", "F.leaky_relu({0}, 0.1)",
    "F.elu({0})", "F.softplus({0})", "F.hardtanh({0}, -0.5, 0.75)", "F.hardswish({0})", "F.mish({0})",
    "F.logsigmoid({0})", "F.hardsigmoid({0})", "F.selu({0})", "F.celu({0}, 1.5)", "F.softsign({0})",
    "F.threshold({0}, 0.1, 20)", "F.dropout({0}, 0.5, False)", "F.hardshrink({0})", "F.softshrink({0})",
)  # fmt: skip
_BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} // {1}", "{0} % {1}", "torch.maximum({0}, {1})",
    "torch.minimum({0}, {1})", "{0} == {1}", "{0} != {1}", "{0} < {1}", "{0} >= {1}", "torch.add({0}, {1}, alpha=2)",
    "torch.sub({0}, {1}, alpha=3)", "torch.atan2({0}, {1})", "torch.fmod({0}, {1})", "{0} & {1}", "{0} | {1}",
    "{0} ^ {1}", "torch.logical_and({0}, {1})", "torch.logical_or({0}, {1})", "torch.div({0}, {1}, rounding_mode='trunc')",
    "torch.fmax({0}, {1})", "torch.pow({0}, {1})", "torch.copysign({0}, {1})", "torch.hypot({0}, {1})",
    "torch.rsub({0}, {1})", "torch.heaviside({0}, {1})", "torch.remainder({0}, {1})", "torch.where({0} > 0, {0}, {1})",
    "torch.logaddexp({0}, {1})", "torch.xlogy({0}, {1})", "torch.nextafter({0}, {1})", "torch.isclose({0}, {1})",
    "torch.float_power({0}, {1})", "torch.true_divide({0}, {1})", "torch.lerp({0}, {1}, 0.3)",
)  # fmt: skip
_WITH_NUMBER = (
    "{0} + {n}", "{n} + {0}", "{0} - {n}", "{n} - {0}", "{0} * {n}", "{0} / {n}", "{n} / {0}", "{0} ** {n}",
    "{0} // {n}", "{0} % {n}", "{0} > {n}", "{0} == {n}", "torch.clamp({0}, {n})", "torch.clamp({0}, max={n})",
    "torch.clamp({0}, -1, {n})", "torch.fmod({0}, {n})", "{0}.eq({n})", "torch.where({0} > {n}, {0}, {n})",
    "{n} ** {0}", "torch.add({0}, {n}, alpha=2)", "torch.mul({0}, {n})", "torch.remainder({n}, {0})",
    "torch.sub({0}, {n}, alpha=2)", "torch.lerp({0}, {0}.flip(0) if {0}.dim() else {0}, {n})",
)  # fmt: skip
_NUMBERS = ("0", "1", "2", "-1", "3", "0.5", "-0.0", "1.0", "2.0", "1e-3", "True", "False", "255", "-300", "1e10",
            "float('inf')", "float('nan')")  # fmt: skip
_DISCONTINUOUS = ("//", "%", "==", "!=", ">", "<", "floor", "ceil", "round", "trunc", "sign", "heaviside", "fmod", "frac",
                  "angle", "argm", "sort", "topk", "nextafter", "isclose", "max(", "min(", ".to(", "remainder", "logical",
                  "hard", "isnan", "isinf", "isfinite", "any(", "all(", "&", "|", "^", "pow", "**", "log", "atan2",
                  "bitwise", "reciprocal", "rsqrt", "/ ", "exp", "div", "unique", "nonzero", "nan_to_num", "sinh", "mode")  # fmt: skip


@dataclass
class Generator:
    """Draws one program. values: names to their values now. is_exact: no product was drawn."""

    rng: random.Random
    with_products: bool
    values: dict[str, Any] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    is_module: bool = False
    is_exact: bool = True
    space: dict[str, Any] = field(default_factory=dict)

    # --- choices

    def pick(self, test: Callable[[torch.Tensor], bool] = lambda t: True) -> str | None:
        """The name of a value, later ones sooner than earlier ones."""
        names = [n for n, v in self.values.items() if isinstance(v, torch.Tensor) and test(v)]
        if not names:
            return None
        return names[-1] if self.rng.random() < 0.35 else self.rng.choice(names)

    def any_dim(self, name: str) -> int:
        rank = self.values[name].dim()
        return self.rng.randrange(-rank, rank) if rank else self.rng.choice((0, -1))

    def dtype(self) -> torch.dtype:
        rng = self.rng
        if self.with_products:
            return torch.float32 if rng.random() < 0.75 else rng.choice(FLOATS)
        return torch.float32 if rng.random() < 0.4 else rng.choice((*FLOATS, *INTEGERS, torch.bool))

    # --- the program

    def program(self, length: int) -> Program:
        self.space = {"torch": torch, "F": torch.nn.functional, "T": tensor}
        self.make_outside()
        for _ in range(length):
            self.step()
        return Program(
            tuple(self.inputs), tuple(self.lines), self.result(), tuple(self.state), self.is_module, self.is_exact
        )

    def make_outside(self) -> None:
        rng = self.rng
        kind = "tame" if self.with_products or rng.random() < 0.4 else "wild"
        for i in range(rng.choice((1, 1, 2, 2, 3))):
            name = f"x{i}"
            text = ""
            if i and rng.random() < 0.2:
                base = f"x{rng.randrange(i)}"
                text = rng.choice((base, f"{base}[..., :1]", f"{base}.t()" if self.values[base].dim() <= 2 else base,
                                   f"{base}.reshape(-1)[1:]", f"{base}.unsqueeze(0)"))  # fmt: skip
            if not text or self.run(text) is None:
                shape = rng.choice(_SHAPES)
                how = rng.choice(LAYOUTS) if rng.random() < 0.5 else "plain"
                text = f"T({i}, {shape}, {self.dtype()}, {how!r}, {kind!r})"
            self.inputs.append(text)
            self.values[name] = self.space[name] = self.run(text)
        if rng.random() < 0.4:
            self.is_module = rng.random() < 0.6
            for i in range(rng.choice((1, 2, 3))):
                dtype = self.dtype()
                text = f"T({50 + i}, {rng.choice(_SHAPES)}, {dtype}, 'plain', {kind!r})"
                shared = f"s0.reshape(-1)[{rng.randrange(3)}:]"
                if i and rng.random() < 0.2 and self.run(shared) is not None:
                    text = shared
                self.state.append(text)
                name = f"self.s{i}" if self.is_module else f"s{i}"
                self.values[name] = self.run(text)
                self.space[f"s{i}"] = self.values[name]
            if self.is_module:
                self.space["self"] = type("State", (), {n[5:]: self.values[n] for n in self.values if "." in n})

    def run(self, text: str) -> Any:
        """The value of an expression; None where it raises or is too large."""
        try:
            value = eval(text, self.space)
        except Exception:
            return None
        if isinstance(value, torch.Tensor) and value.numel() > LARGEST:
            return None
        return value

    def step(self) -> None:
        for _ in range(8):
            maker = self.rng.choice(_MAKERS_WITH_PRODUCTS if self.with_products else _MAKERS)
            text = maker(self)
            if text is None or (not self.is_exact and self.is_delicate(text)):
                continue
            is_product = maker in _PRODUCTS
            if text.startswith("!"):
                if self.execute(text[1:]):
                    self.lines.append(text[1:])
                    return
                continue
            value = self.run(text)
            if value is None:
                continue
            self.is_exact = self.is_exact and not is_product
            name = f"v{len(self.lines)}"
            self.lines.append(f"{name} = {text}")
            self.space[name] = value
            self.values[name] = value
            if isinstance(value, (tuple, list)):
                for i, element in enumerate(value[:3]):
                    if isinstance(element, torch.Tensor):
                        self.values[f"{name}[{i}]"] = element
            return

    def is_delicate(self, text: str) -> bool:
        """Whether roundings before it may decide the statement's result."""
        return any(part in text for part in _DISCONTINUOUS)

    def execute(self, text: str) -> bool:
        try:
            exec(text, self.space)
        except Exception:
            return False
        return True

    def result(self) -> str:
        names = [n for n in self.values if n.startswith("v")] or list(self.values)
        count = self.rng.choice((1, 1, 2, 3, 4))
        chosen = [names[-1]] + [self.rng.choice(list(self.values)) for _ in range(count - 1)]
        if self.rng.random() < 0.5:
            chosen += [n for n in names if n not in chosen][-3:]
        form = self.rng.random()
        if len(chosen) == 1 and form < 0.6:
            return chosen[0]
        if form < 0.7:
            return f"({', '.join(chosen)},)"
        if form < 0.8:
            return f"[{', '.join(chosen)}, None, 3]"
        if form < 0.9:
            return f"{{'a': {chosen[0]}, 'b': ({', '.join(chosen)},), 'n': None}}"
        return f"({chosen[0]}, [{', '.join(chosen)}, (2.5, None)])"


# --- statements: each maker gives an expression, or "!" and a statement, or None where it does not apply


def _shape_of(g: Generator, name: str) -> tuple[int, ...]:
    return tuple(g.values[name].shape)


def _unary(g: Generator) -> str | None:
    return f"torch.{g.rng.choice(_UNARY)}({g.pick()})"


def _functional(g: Generator) -> str | None:
    name = g.pick(lambda t: t.is_floating_point())
    return None if name is None else g.rng.choice(_FUNCTIONAL).format(name)


def _binary(g: Generator) -> str | None:
    return g.rng.choice(_BINARY).format(g.pick(), g.pick())


def _with_number(g: Generator) -> str | None:
    return g.rng.choice(_WITH_NUMBER).format(g.pick(), n=g.rng.choice(_NUMBERS))


def _fused(g: Generator) -> str | None:
    form = g.rng.choice((
        "torch.addcmul({0}, {1}, {2}, value=0.5)", "torch.addcdiv({0}, {1}, {2})", "torch.where({0} > 0, {1}, {2})",
        "torch.clamp({0}, {1}, {2})", "torch.lerp({0}, {1}, {2})", "torch.where({0}.bool(), {1}, {2})",
    ))  # fmt: skip
    return form.format(g.pick(), g.pick(), g.pick())


def _cast(g: Generator) -> str | None:
    dtype = g.rng.choice((*FLOATS, *INTEGERS, torch.bool, torch.int16, torch.int8))
    form = g.rng.choice(("{0}.to({d})", "{0}.to({d}, copy=True)", "{0}.type_as({1})", "{0}.float()", "{0}.double()"))
    return form.format(g.pick(), g.pick(), d=dtype)


def _view(g: Generator) -> str | None:
    name = g.pick()
    assert name is not None
    shape, rng = _shape_of(g, name), g.rng
    rank = len(shape)
    d, e = g.any_dim(name), g.any_dim(name)
    size = shape[d] if rank else 1
    i = rng.randrange(-size, size) if size else 0
    order = list(range(rank))
    rng.shuffle(order)
    factors = [s for s in (1, 2, 3, 4) if size and size % s == 0] or [1]
    count = rng.choice(factors)
    forms = [
        f"{name}.select({d}, {i})", f"{name}.transpose({d}, {e})", f"{name}.unsqueeze({rng.randrange(-rank - 1, rank + 1)})",
        f"{name}.permute({tuple(order)})", f"{name}.narrow({d}, {max(i, 0)}, {rng.randrange(size - max(i, 0) + 1)})",
        f"{name}[{max(i, 0)}:]", f"{name}[..., ::{rng.choice((1, 2, 3))}]", f"{name}[..., None]", f"{name}[:, {i}]",
        f"{name}[-{rng.randrange(1, 4)}:]", f"{name}[{rng.randrange(3)}:{rng.randrange(-3, 9)}]", f"{name}.t()",
        f"{name}.expand({(*[rng.choice((1, 2, 3))] * rng.choice((0, 1)), *[rng.choice((2, 3)) if s == 1 else -1 for s in shape])})",
        f"{name}.reshape(-1)", f"{name}.view(-1)", f"{name}.flatten()", f"{name}.squeeze()", f"{name}.squeeze({d})",
        f"{name}.reshape({(*shape[:-1], count, -1)})", f"{name}.unflatten({d}, ({count}, -1))", f"{name}.diagonal()",
        f"{name}.diagonal(1)", f"{name}.unfold({d}, 2, 1)", f"{name}.contiguous()", f"{name}.clone()", f"{name}.mT",
        f"{name}.detach()", f"{name}.view_as({name})", f"{name}.expand_as({g.pick()})", f"{name}.reshape_as({g.pick()})",
        f"{name}.movedim({d}, {e})", f"{name}.as_strided(({rng.choice((1, 2, 3))}, 2), ({rng.choice((0, 1, 2))}, 1))",
        f"{name}.as_strided(({rng.choice((1, 2))},), (1,), {rng.choice((0, 1, 3))})", f"{name}.flatten({min(d, e)}, {max(d, e)})",
        f"{name}.view({(count, -1)})", f"{name}.swapaxes({d}, {e})", f"{name}.ravel()", f"{name}.real", f"{name}.data",
        f"{name}.clone(memory_format=torch.contiguous_format)", f"torch.broadcast_to({name}, {(2, *shape)})",
        f"{name}.view(torch.int32)", f"{name}.view(torch.uint8)", f"{name}.adjoint()", f"{name}.expand({(3, *shape)})",
        f"{name}.squeeze(({d},))", f"{name}.T", f"{name}.positive()", f"torch.atleast_2d({name})",
    ]  # fmt: skip
    return rng.choice(forms)


def _many(g: Generator) -> str | None:
    name = g.pick()
    assert name is not None
    d = g.any_dim(name)
    return g.rng.choice((
        f"{name}.split(1, {d})", f"{name}.chunk(2, {d})", f"{name}.unbind({d})", f"{name}.split([1, {max((_shape_of(g, name) or (1,))[d] - 1, 0)}], {d})",
        f"torch.broadcast_tensors({name}, {g.pick()})", f"{name}.max({d})", f"{name}.min({d})", f"{name}.sort({d}, stable=True)",
        f"torch.tensor_split({name}, 3, {d})", f"torch.var_mean({name}, {d})", f"torch.frexp({name})", f"{name}.cummax({d})",
        f"torch.aminmax({name})", f"{name}.topk(1, {d})", f"torch.meshgrid({name}.flatten(), {name}.flatten()[:2], indexing='ij')",
        f"{name}.kthvalue(1, {d})", f"torch.unsafe_split({name}, 1, {d})", f"torch.std_mean({name}, {d}, keepdim=True)",
    ))  # fmt: skip


def _reduce(g: Generator) -> str | None:
    name = g.pick()
    assert name is not None
    d = g.any_dim(name)
    return g.rng.choice((
        f"{name}.sum()", f"{name}.sum({d})", f"{name}.sum({d}, keepdim=True)", f"{name}.mean({d})", f"{name}.mean()",
        f"{name}.amax({d})", f"{name}.amin({d}, keepdim=True)", f"{name}.prod()", f"{name}.any()", f"{name}.all({d})",
        f"{name}.argmax({d})", f"{name}.argmin()", f"{name}.var({d})", f"{name}.std()", f"{name}.cumsum({d})",
        f"{name}.logsumexp({d})", f"torch.softmax({name}, {d})", f"torch.log_softmax({name}, {d})", f"{name}.norm()",
        f"{name}.sum(dtype=torch.float64)", f"F.softmax({name}, {d}, dtype=torch.float32)", f"{name}.cumprod({d})",
        f"{name}.max()", f"{name}.count_nonzero({d})", f"{name}.var({d}, correction=0)", f"torch.linalg.vector_norm({name}, 2, {d})",
        f"{name}.nansum({d})", f"{name}.mean({d}, keepdim=True)", f"{name}.logcumsumexp({d})", f"{name}.median()",
        f"F.normalize({name}, dim={d})", f"{name}.flip({d})", f"{name}.roll(1, {d})", f"{name}.diff(dim={d})",
    ))  # fmt: skip


def _norm(g: Generator) -> str | None:
    name = g.pick(lambda t: t.is_floating_point() and t.dim() >= 1 and t.numel() > 0)
    if name is None:
        return None
    shape = _shape_of(g, name)
    return g.rng.choice((
        f"F.layer_norm({name}, ({shape[-1]},))", f"F.layer_norm({name}, ({shape[-1]},), {g.pick()}, {g.pick()})",
        f"F.rms_norm({name}, ({shape[-1]},))", f"F.group_norm({name}, 1)", f"F.avg_pool1d({name}, 2)", f"F.max_pool1d({name}, 2)",
        f"F.batch_norm({name}, None, None, training=True)", f"F.pad({name}, (1, 2))", f"F.pad({name}, (-1, 1), value=2.0)",
        f"F.max_pool2d({name}, 2)", f"F.avg_pool2d({name}, 2, padding=1)", f"F.interpolate({name}, scale_factor=2)",
        f"F.adaptive_avg_pool2d({name}, 1)", f"F.glu({name})", f"F.pixel_shuffle({name}, 1)", f"F.unfold({name}, 2)",
        f"F.instance_norm({name})", f"F.pad({name}, (1, 1), mode='reflect')", f"F.pad({name}, (1, 1, 1, 0))",
    ))  # fmt: skip


def _join(g: Generator) -> str | None:
    a = g.pick()
    assert a is not None
    shape = g.values[a].shape
    b = g.pick(lambda t: t.shape == shape) or a
    d = g.any_dim(a)
    return g.rng.choice((
        f"torch.cat(({a}, {b}), {d})", f"torch.stack(({a}, {b}), {d})", f"torch.cat(({a}, {b}, {a}))", f"torch.hstack(({a}, {b}))",
        f"{a}.repeat({(2, *[1] * (len(shape) or 1))})", f"{a}.repeat_interleave(2, {d})", f"torch.tile({a}, (2,))",
        f"torch.outer({a}, {b}) if False else torch.vstack(({a}, {b}))", f"torch.cat(({a},), {d})",
    ))  # fmt: skip


def _index(g: Generator) -> str | None:
    name = g.pick(lambda t: t.dim() >= 1 and 0 not in t.shape)
    if name is None:
        return None
    d = g.any_dim(name)
    size = _shape_of(g, name)[d]
    some = [g.rng.randrange(size) for _ in range(3)]
    return g.rng.choice((
        f"{name}.index_select({d}, torch.tensor({some}))", f"torch.gather({name}, {d}, torch.zeros_like({name}, dtype=torch.int64))",
        f"{name}.masked_fill({name} > 0, 2)", f"{name}.masked_fill({name}.isnan(), -1.0)", f"torch.take({name}, torch.tensor({some[:1]}))",
        f"{name}[torch.tensor([0, 0])]", f"{name}[[0]]", f"torch.tril({name})", f"torch.triu({name}, 1)",
        f"{name}.index_add({d}, torch.tensor([0]), {name}.narrow({d}, 0, 1))", f"{name}.scatter({d}, torch.zeros_like({name}, dtype=torch.int64), 3)",
        f"{name}.scatter_add({d}, torch.zeros_like({name}, dtype=torch.int64), {name})", f"{name}.index_fill({d}, torch.tensor([0]), 5)",
        f"{name}[..., torch.tensor({some[:2]}) % {_shape_of(g, name)[-1]}]", f"{name}.index_copy({d}, torch.tensor([0]), {name}.narrow({d}, 0, 1))",
        f"torch.embedding({name}, torch.tensor([0, 0]))", f"F.one_hot(torch.tensor({some}), {size})",
        f"{name}.slice_scatter({name}.narrow({d}, 0, 1) * 2, {d}, 0, 1)", f"{name}.select_scatter({name}.select({d}, 0) + 1, {d}, -1)",
        f"torch.searchsorted(torch.tensor([0.0, 1.0]), {name}.float())", f"torch.take_along_dim({name}, {name}.argsort({d}, stable=True), {d})",
        f"torch.masked_select({name}, {name}.isfinite()).numel()" if False else f"torch.bucketize({name}, torch.tensor([0.0]))",
    ))  # fmt: skip


def _make(g: Generator) -> str | None:
    name = g.pick()
    assert name is not None
    shape = _shape_of(g, name)
    return g.rng.choice((
        f"torch.zeros_like({name})", f"torch.ones({shape})", f"torch.full_like({name}, 2)", "torch.arange(4)", "torch.tensor(2.5)",
        "torch.tensor([1, 2, 3])", f"{name}.new_zeros({shape})", "torch.arange(3, dtype=torch.float32)", "torch.eye(3)",
        f"torch.zeros({shape}, dtype={g.values[name].dtype})", f"{name}.size(-1) * {name}", f"{name} * {name}.numel()",
        "torch.linspace(0, 1, 5)", f"torch.full({shape}, 1)", f"torch.full({shape}, 0.5)", f"{name}.new_full((2,), 3)",
    ))  # fmt: skip


def _random(g: Generator) -> str | None:
    name = g.pick()
    return g.rng.choice((
        f"F.dropout({name}, 0.5, True)", f"torch.rand_like({name})", "torch.randn(3)", "torch.randint(0, 5, (3,))",
        "torch.rand(2, 3)", f"torch.bernoulli(torch.full({_shape_of(g, name or 'x0')}, 0.5))", "torch.randperm(4)",
        f"{name}.clone().normal_()", f"{name}.clone().uniform_()",
    ))  # fmt: skip


def _in_place(g: Generator) -> str | None:
    name, other = g.pick(), g.pick()
    assert name is not None
    d = g.any_dim(name)
    n = g.rng.choice(_NUMBERS)
    shape = _shape_of(g, name)
    like = g.pick(lambda t: tuple(t.shape) == shape) or other
    form = g.rng.choice((
        f"{name}.add_({n})", f"{name}.mul_({n})", f"{name}.add_({other})", f"{name}.mul_({like})", f"{name}.sub_({like})",
        f"{name}.copy_({other})", f"{name}.zero_()", f"{name}.fill_({n})", f"{name}.relu_()", f"{name}.neg_()", f"{name}.abs_()",
        f"{name}[0] = {n}", f"{name}[..., -1:] = {other}", f"{name}[..., 0] += 1", f"{name}.select({d}, 0).mul_(2)",
        f"{name}.transpose(0, -1).add_(1)", f"{name}.unsqueeze(0).add_({other})", f"{name}.masked_fill_({name} > 0, 1)",
        f"{name}.clamp_(-1, 1)", f"{name}.div_(2)", f"{name}.diagonal().zero_()", f"{name}[{name} > 0] = 0", f"{name}.t_()",
        f"{name}.index_add_({d}, torch.tensor([0]), {name}.narrow({d}, 0, 1) * 1)", f"{name}.squeeze_()", f"{name}.unsqueeze_(0)",
        f"{name}.scatter_({d}, torch.zeros_like({name}, dtype=torch.int64), 1)", f"{name}.expand(2, *{shape}).add_(1)",
        f"{name}.view(-1)[::2].add_({n})", f"{name}.reshape(-1).add_({n})", f"{name}[1:] = {name}[:-1].clone()", f"{name}.sqrt_()",
        f"torch.add({name}, {like}, out={name})", f"{name}.narrow({d}, 0, 1).copy_({name}.narrow({d}, -1, 1))", f"{name} += {like}",
        f"{name} *= {n}", f"{name}.as_strided((2,), (1,)).add_(1)", f"{name}.index_put_((torch.tensor([0, 0]),), {other}, accumulate=True)",
        f"F.relu({name}, inplace=True)", f"{name}.flatten().mul_(3)", f"{name}.chunk(2, {d})[0].add_(1)", f"{name}.unbind({d})[-1].zero_()",
        f"{name}.set_({other})" if False else f"{name}.swapaxes(0, -1).copy_({like})", f"{name}.eq_({n})", f"{name}.addcmul_({like}, {like})",
        f"{name}.index_fill_({d}, torch.tensor([0]), 4)", f"{name}.lerp_({like}, 0.5)", f"{name}.pow_(2)", f"{name}.floor_()",
        f"{name}.cumsum_({d})", f"{name}.tril_()", f"{name}.fill_diagonal_(1)", f"{name}.index_copy_({d}, torch.tensor([0]), {name}.narrow({d}, -1, 1).clone())",
        f"torch.mul({name}, 2, out={name})", f"{name}.masked_scatter_({name} > 0, {name}.clone())", f"{name}.unfold({d}, 2, 1).mul_(2)",
        f"{name}.copy_({like}.flip(0))", f"{name}.expand_as({name}).add_(1)", f"{name}.detach().add_(1)", f"{name}.data.add_(1)",
    ))  # fmt: skip
    return "!" + form


def _product(g: Generator) -> str | None:
    a = g.pick(lambda t: t.is_floating_point() and t.dim() >= 1)
    if a is None:
        return None
    dtype, shape = g.values[a].dtype, _shape_of(g, a)
    k = shape[-1]
    seed, n = g.rng.randrange(99), g.rng.choice((1, 2, 5, 16))

    def new(*size: int) -> str:
        return f"T({seed}, {size}, {dtype})"

    match = g.pick(lambda t: t.dtype == dtype and t.dim() >= 1 and (t.shape[0] if t.dim() == 1 else t.shape[-2]) == k)
    b = match or new(k, n)
    forms = [
        f"{a} @ {b}", f"torch.matmul({a}, {new(k, n)})", f"F.linear({a}, {new(n, k)}, {new(n)})", f"F.linear({a}, {new(n, k)})",
        f"torch.mm({a}, {b})", f"torch.bmm({a}, {a}.transpose(-1, -2))", f"{a} @ {a}.mT", f"torch.mv({a}, {new(k)})",
        f"torch.addmm({new(n)}, {a}, {new(k, n)}, beta=0.5, alpha=2)", f"torch.einsum('...i,ij->...j', {a}, {new(k, n)})",
        f"F.gelu(F.linear({a}, {new(n, k)}, {new(n)}))", f"F.relu(F.linear({a}, {new(n, k)}))", f"{a} + F.linear({a}, {new(k, k)})",
        f"torch.softmax({a} @ {a}.mT * 0.3, -1) @ {a}", f"F.scaled_dot_product_attention({a}, {a}, {a})", f"torch.dot({a}, {a})",
        f"F.scaled_dot_product_attention({a}, {a}, {a}, is_causal=True)", f"torch.baddbmm({a}, {a}, {a})", f"torch.outer({a}, {a})",
        f"torch.softmax(({a} @ {a}.mT).masked_fill(torch.ones({shape[-2] if len(shape) > 1 else 1}, {shape[-2] if len(shape) > 1 else 1}).triu(1).bool(), float('-inf')), -1) @ {a}",
        f"F.linear({a}.relu(), {new(n, k)}).tanh() * 2", f"torch.cat((F.linear({a}, {new(n, k)}), F.linear({a}, {new(n, k)}, {new(n)})), -1)",
        f"torch.addmm({a}, {a}, {a})", f"F.bilinear({a}, {a}, {new(2, k, k)})", f"torch.chain_matmul({a}, {new(k, n)})", f"torch.kron({a}, {a})",
    ]  # fmt: skip
    if torch._debug_has_internal_overlap(g.values[a]) != 0:
        # torch's own flash kernel gives something else each time for queries whose elements share places.
        forms = [form for form in forms if "scaled_dot_product" not in form]
    if len(shape) in (3, 4):
        c, tail = shape[-3] if len(shape) == 4 else shape[-2], (2, 2) if len(shape) == 4 else (2,)
        kind = "conv2d" if len(shape) == 4 else "conv1d"
        forms += [
            f"F.{kind}({a}, {new(n, c, *tail)}, {new(n)}, padding=1)",
            f"F.{kind}({a}, {new(n, c, *tail)}, stride=2)",
            f"F.{kind}({a}, {new(c, 1, *tail)}, groups={c})",
            f"F.relu(F.{kind}({a}, {new(n, c, *tail)}, {new(n)}))",
            f"F.conv_transpose2d({a}, {new(c, 2, 2, 2)})",
            f"F.{kind}(F.pad({a}, (1, 0)), {new(c, c, *tail)}, dilation=1) + 1",
            f"F.batch_norm(F.{kind}({a}, {new(n, c, *tail)}), {new(n)}, {new(n)}.abs() + 1, {new(n)}, {new(n)})",
        ]
    if g.state:
        held = [
            m
            for m, v in g.values.items()
            if ("s" in m.split(".")[-1][:1]) and isinstance(v, torch.Tensor) and v.dtype == dtype
        ]
        forms += [f"F.linear({a}, {w})" for w in held for _ in range(3)] + [f"{a} @ {w}" for w in held]
        forms += [
            f"F.linear({a}, {w}, {v})" for w in held for v in held if g.values[w].dim() == 2 and g.values[v].dim() == 1
        ]
    return g.rng.choice(forms)


_PRODUCTS = (_product,)
_MAKERS = (
    _unary, _unary, _functional, _binary, _binary, _binary, _with_number, _with_number, _fused, _cast, _view, _view, _view,
    _view, _many, _reduce, _reduce, _norm, _join, _index, _make, _random, _in_place, _in_place, _in_place, _in_place,
)  # fmt: skip
_MAKERS_WITH_PRODUCTS = (
    _product, _product, _product, _product, _unary, _functional, _functional, _binary, _with_number, _view, _view, _view,
    _many, _reduce, _norm, _join, _index, _make, _in_place, _in_place, _in_place, _fused, _cast,
)  # fmt: skip


def generate(seed: int) -> Program:
    """The program of a number."""
    rng = random.Random(seed)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        return Generator(rng, with_products=seed % 4 == 0).program(rng.choice((2, 4, 6, 9, 14)))
