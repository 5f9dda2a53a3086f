"""How far a program's results may lie from eager's: how far eager's own move when each rounding falls otherwise.

The program runs again a few times, and every operator that another implementation may round otherwise (exponentials,
sums, norms) has its results moved by a unit or two in the last place. Where that changes little, a result must agree
closely, however large its neighbours are; where it decides a comparison, that element is left out; integers, such as
the bits of a rounded value, lie as near as those runs do. A program without such operators must agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.differential.compare import Outcome, bits_equal, difference, snapshot

# One correctly rounded operation, or none: whoever computes it, the bits are the same.
EXACT = frozenset(
    (
        "add", "sub", "rsub", "mul", "div", "neg", "abs", "maximum", "minimum", "fmax", "fmin", "clamp", "clamp_min",
        "clamp_max", "where", "masked_fill", "floor", "ceil", "round", "trunc", "sign", "sgn", "relu", "threshold",
        "hardtanh", "leaky_relu", "copy", "clone", "fill", "zero", "zeros", "ones", "full", "empty", "arange", "eye",
        "scalar_tensor", "cat", "stack", "flip", "roll", "constant_pad_nd", "reflection_pad1d", "replication_pad1d",
        "index_select", "gather", "take", "embedding", "index", "index_fill", "index_copy", "tril", "triu", "amax",
        "amin", "max", "min", "argmax", "argmin", "sort", "topk", "kthvalue", "cummax", "cummin", "median", "isnan",
        "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not",
        "bitwise_and", "bitwise_or", "bitwise_xor", "any", "all", "nan_to_num", "copysign", "signbit", "heaviside",
        "nextafter", "frac", "fmod", "remainder", "square", "relu6", "hardshrink", "softshrink", "slice_scatter",
        "select_scatter", "scatter", "lift_fresh", "detach", "alias", "positive", "max_pool2d_with_indices",
        "upsample_nearest1d", "upsample_nearest2d", "repeat", "repeat_interleave", "im2col", "frexp", "rand_like",
        "randn", "rand", "randint", "randperm", "bernoulli", "normal", "uniform", "index_put", "floor_divide",
        "masked_scatter", "hardswish", "hardsigmoid", "count_nonzero", "unfold", "nonzero", "one_hot", "set", "resize",
        "empty_like", "zeros_like", "ones_like", "full_like", "new_zeros", "new_full", "new_ones", "new_empty",
        "reciprocal", "_local_scalar_dense", "unsafe_split", "fill_diagonal", "scatter_add", "index_add", "glu_none",
        "is_same_size", "equal", "item", "bucketize", "searchsorted", "isinf",
    )
)  # fmt: skip
_UNITS = {torch.float32: 2.0, torch.float64: 2.0, torch.float16: 1.0, torch.bfloat16: 1.0}
# They add what nearly cancels for some arguments: eager's own error is one of the argument's size there.
_CANCEL = frozenset({"gelu", "mish", "celu", "elu", "selu", "logaddexp", "_log_softmax"})
_NORMS = frozenset({"native_layer_norm", "native_group_norm", "native_batch_norm"})
_TIMES = 4.0
RUNS = 5


class Noise(TorchDispatchMode):
    """Moves results by units in the last place. names: the operators that were moved."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name.split("::")[1]
        marks = [a.alias_info for a in func._schema.arguments]
        is_write = name.endswith("_") or any(mark is not None and mark.is_write for mark in marks)
        is_view = not is_write and any(r.alias_info is not None for r in func._schema.returns)
        if is_view or name.rstrip("_") in EXACT:
            made = func(*args, **kwargs)
            return self._with_huge_quotients(made, *args) if name.rstrip("_") in ("fmod", "remainder") else made
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not is_write and any(t.is_floating_point() for t in inputs):
            args, kwargs = tree_map(self._around, (args, kwargs))
        made = func(*args, **kwargs)
        if name in _CANCEL:
            self.names.add(name)
            units = torch.rand(made.shape, generator=self._generator).to(made.dtype) * 2 - 1
            made = made + units * args[0].abs().clamp(max=10) * torch.finfo(made.dtype).eps
            return self._with_infinite_gelu(made, args[0]) if name == "gelu" else made
        floats = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel()]
        if floats:
            self.names.add(name)
        if is_write:
            for t in floats:
                if torch._debug_has_internal_overlap(t) == 0:
                    t.copy_(self._moved(t))
            return made
        if name == "native_layer_norm":
            made = (self._with_means(*made), *made[1:])
        if name in _NORMS:
            made = (self._with_overflow(made[0], args[0]), *made[1:])
        if name in ("erf", "erfc") and made.element_size() == 2:
            # Eager's vectors of half types are near in absolute terms only.
            made = made + (torch.rand(made.shape, generator=self._generator) * 2 - 1) * torch.finfo(torch.float32).eps
            made = made.to(args[0].dtype)
        return tree_map(self._moved, made)

    def _with_overflow(self, made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Where the sum of squares overflows, NaN or 0 comes out by the order of the sums."""
        if x.numel() == 0 or float(x.double().square().sum()) < torch.finfo(torch.float32).max:
            return made
        chance = torch.rand(made.shape, generator=self._generator) < 0.5
        return torch.where(chance, torch.where(made.isnan(), 0.0, float("nan")), made).to(made.dtype)

    def _with_means(self, made: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
        """Eager adds x * rstd and -mean * rstd, which cancel where a row hardly varies."""
        units = torch.rand(made.shape, generator=self._generator).to(made.dtype) * 2 - 1
        return made + units * ((mean * rstd).abs() * torch.finfo(torch.float32).eps).to(made.dtype)

    def _with_infinite_gelu(self, made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Where x * erf(x) overflows, eager's vectors say NaN or infinity, its last few elements infinity or x."""
        huge = x > torch.finfo(x.dtype).max / 2
        chance = torch.rand(made.shape, generator=self._generator) < 0.5
        return torch.where(huge & chance, torch.where(x.isinf(), float("nan"), float("inf")), made)

    def _with_huge_quotients(self, made: torch.Tensor, a: torch.Tensor, b: Any) -> torch.Tensor:
        """Where a quotient is not whole in the dtype, eager's vectors may say NaN, its last few elements not."""
        if not made.is_floating_point():
            return made
        unsure = (a / b).abs() * torch.finfo(made.dtype).eps > 1
        if bool(unsure.any()):
            self.names.add("fmod")
        chance = torch.rand(made.shape, generator=self._generator) < 0.5
        return made.copy_(torch.where(unsure & chance, torch.where(made.isnan(), 0.0, float("nan")), made))

    def _around(self, value: Any) -> Any:
        """Operands of sums, as if each had been rounded once more where the sum is held in f32 or f64."""
        return self._moved(value) if isinstance(value, torch.Tensor) and value.element_size() >= 4 else value

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
            return value
        units = torch.rand(value.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
        units = units.sign() if value.element_size() == 2 else units
        eps = torch.finfo(value.dtype).eps * _UNITS[value.dtype]
        if value.dtype == torch.float64:
            moved = value * (1 + units * eps)
        else:
            moved = (value.to(torch.float64) * (1 + units * eps)).to(value.dtype)
        # Sums that overflow elsewhere stay what they are. IEEE 754 (6.3) says nothing of a NaN's sign.
        sign = units.sign().to(value.dtype)
        moved = torch.where(value.isfinite(), moved, torch.where(value.isnan(), value.copysign(sign), value))
        if torch._debug_has_internal_overlap(value) != 0:
            return moved
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(moved)


class Envelope:
    """Eager's outcome, and where it goes when roundings fall otherwise."""

    def __init__(self, run: Callable[[], Outcome], runs: int = RUNS) -> None:
        self.expected = run()
        self.others: list[Outcome] = []
        self.rounded: set[str] = set()
        if self.expected.error is not None:
            return
        for seed in range(runs):
            with Noise(seed) as noise:
                other = run()
            self.rounded |= noise.names
            if not noise.names:
                return
            if other.error is not None:
                self.others = []
                self.expected.nest = "unstable"
                return
            self.others.append(other)

    @property
    def is_unstable(self) -> bool:
        """Whether roundings decide what the program is."""
        return self.expected.nest == "unstable" or any(
            [_kind(leaf) for leaf in o.leaves] != [_kind(leaf) for leaf in self.expected.leaves] for o in self.others
        )

    def difference(self, found: Outcome) -> str | None:
        """The first difference beyond the envelope."""
        if not self.others:
            return difference(self.expected, found, is_exact=True)
        # Everything but the values; then these.
        text = difference(self.expected, found, is_exact=False, least=float("inf"))
        if text is not None and "NaN or infinity" not in text and " is [" not in text and "differs by" not in text:
            return text
        for what, name in (("leaves", "output"), ("after", "input or state")):
            others = [getattr(o, what) for o in self.others]
            for i, (a, b) in enumerate(zip(getattr(self.expected, what), getattr(found, what), strict=True)):
                if isinstance(a, torch.Tensor):
                    text = _outside(a, b, [o[i] for o in others])
                    if text is not None:
                        return f"{name} {i} {text}"
        return None


def _kind(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else None


def _outside(a: torch.Tensor, b: torch.Tensor, others: Sequence[torch.Tensor]) -> str | None:
    a, b, others = snapshot(a), snapshot(b), [snapshot(o) for o in others]
    if bits_equal(a, b):
        return None
    if a.dtype.is_complex:
        a, b, others = torch.view_as_real(a), torch.view_as_real(b), [torch.view_as_real(o) for o in others]
    if not a.dtype.is_floating_point:
        if a.dtype == torch.bool:
            wrong = torch.stack([o == a for o in others]).all(0) & (a != b)
        else:
            # Bits of what was rounded, or a place in it: no further off than by what they move.
            wrong = _steps(a, b) > _TIMES * torch.stack([_steps(a, o) for o in others]).amax(0)
        return _told(a, b, wrong) if bool(wrong.any()) else None
    odd = ~a.isfinite()
    steady = torch.stack([(o == a) | (o.isnan() & a.isnan()) for o in others]).all(0)
    wrong = odd & steady & ~((a == b) | (a.isnan() & b.isnan()))
    calm = ~odd & torch.stack([o.isfinite() for o in others]).all(0)
    wrong |= calm & ~b.isfinite()
    wide = a.to(torch.float64)
    spread = torch.stack([(o.to(torch.float64) - wide).abs() for o in others]).amax(0)
    info = torch.finfo(a.dtype)
    room = _TIMES * spread + 2 * info.eps * wide.abs().clamp(min=info.tiny)
    wrong |= calm & b.isfinite() & ((b.to(torch.float64) - wide).abs() > room)
    return _told(a, b, wrong) if bool(wrong.any()) else None


def _steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many integers lie between, the way round that is shorter: a byte's next after 255 is 0."""
    signed = torch.int8 if a.dtype == torch.uint8 else a.dtype
    return (b - a).view(signed).to(torch.float64).abs()


def _told(a: torch.Tensor, b: torch.Tensor, wrong: torch.Tensor) -> str:
    where, ours, eager = wrong.nonzero()[:4].tolist(), b[wrong][:4].tolist(), a[wrong][:4].tolist()
    return f"at {where} ({int(wrong.sum())} of {wrong.numel()}) is {ours} instead of {eager}"
