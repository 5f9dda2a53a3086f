"""`quantize`: linear layers whose weights are bytes, and whose inputs become bytes row by row as they come.

before:  y = x @ weight.T + bias                                               f32[n, k] weights
after:   q, scale, low = bytes_of(x);  y = (q @ bytes.T) * scale * scales + low * sums + bias          i8[n, k]

Invariant: the bytes are the layer's only weights, so nothing can be stale: a checkpoint is made of them, and read into
them. Each row of x has its own range, so no row's answer depends on another's; one that holds NaN or infinity becomes
NaN. Where a gradient is asked for, the layer multiplies in floats by what the bytes stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.nn import functional

from smelt._torch.library import int8_products
from smelt.diag import ScheduleError
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.finding.target import join
from smelt.scheduling.modules.module_steps import OnModule
from smelt.scheduling.modules.module_steps_error import Measured

_ALLOWED = 0.1
_TINY = torch.finfo(torch.float32).tiny


class Quantize(OnModule):
    """Linear layers in bytes."""

    name = "quantize"
    keeps_meaning: ClassVar[bool] = False

    @classmethod
    def allowed_error(cls, arguments: Mapping[str, Any]) -> float:
        given = arguments.get("max_error")
        return _ALLOWED if given is None else float(given)

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        if arguments.get("dtype", torch.int8) is not torch.int8:
            raise ScheduleError(f"linear layers cannot be in {arguments['dtype']}", fix="torch.int8", code="S0607")
        module = self.module(draft, at)
        below = {join(at.path, name): part for name, part in module.named_modules()}
        linears = {path: part for path, part in below.items() if type(part) is torch.nn.Linear}
        refused = {path: why for path, part in linears.items() if (why := _obstacle(part, draft.root)) is not None}
        chosen = {path: part for path, part in linears.items() if path not in refused}
        if not chosen:
            raise ScheduleError(
                f"{at.path or 'the whole'} has no linear layer to quantize",
                why="; ".join(f"{path}: {why}" for path, why in refused.items()) or "there is no nn.Linear in it",
                fix="select a module with nn.Linear layers", code="S0607",
            )  # fmt: skip
        measured = Measured(draft)
        for path, part in chosen.items():
            draft.put(path, QuantizedLinear.of(part))
        error = measured.error("quantize()", at.path, self.allowed_error(arguments))
        shown = f"error {error:.2g}" if error is not None else "error not measured: no example inputs"
        draft.note(at.path, f"int8: {len(chosen)} of {len(linears)} linear layers, {shown}")
        for path, why in refused.items():
            draft.note(path, f"not int8: {why}")


class QuantizedLinear(torch.nn.Linear):
    """A linear layer over bytes; its `state_dict` is that of the float layer, with what the bytes stand for.

    weight_bytes: i8[n, k]; weight_scale: f32[n], what one step of a byte stands for; weight_sum: f32[n].
    """

    weight_bytes: torch.Tensor
    weight_scale: torch.Tensor
    weight_sum: torch.Tensor

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        for name in ("weight_bytes", "weight_scale", "weight_sum"):
            self.register_buffer(name, None, persistent=False)

    @classmethod
    def of(cls, linear: torch.nn.Linear) -> QuantizedLinear:
        """The layer with a float layer's weights in bytes, and its very bias."""
        made = cls(linear.in_features, linear.out_features, linear.weight.dtype)
        made.register_parameter("bias", linear.bias)
        made._take(linear.weight)
        made.training = linear.training
        return made

    @property
    def weight(self) -> torch.Tensor:
        """What the bytes stand for, [n, k] of the float layer's type."""
        return (self.weight_bytes * self.weight_scale[:, None]).to(self.dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., k] -> [..., n] of the input's type, as the float layer."""
        needs_gradient = input.requires_grad or (self.bias is not None and self.bias.requires_grad)
        if torch.is_grad_enabled() and needs_gradient:
            return functional.linear(input, self.weight, self.bias)
        device = input.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        rows = input.reshape(-1, self.in_features).float()
        low, high = torch.aminmax(rows, dim=-1, keepdim=True)
        scale = ((high - low) / 255).clamp_min(_TINY)
        coded = ((rows - low) / scale).round() - 128
        sums = int8_products.product(coded.clamp(-128, 127).to(torch.int8), self.weight_bytes)
        # x is scale * (coded + 128) + low.
        found = sums * scale * self.weight_scale.float() + (low + 128 * scale) * self.weight_sum.float()
        if self.bias is not None:
            found = found + self.bias
        return found.to(dtype).reshape(*input.shape[:-1], self.out_features)

    def _take(self, weight: torch.Tensor) -> None:
        wide = weight.detach().float()
        scale = wide.abs().amax(dim=1).div(127).clamp_min(_TINY)
        self.weight_bytes = (wide / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.weight_scale = scale
        self.weight_sum = self.weight_bytes.sum(dim=1) * scale

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        name = prefix + "weight"
        super()._load_from_state_dict({key: v for key, v in state_dict.items() if key != name}, prefix, *rest)
        missing, _, errors = rest[-3:]
        given = state_dict.get(name)
        if given is None:
            missing.append(name)
        elif given.shape != self.weight_bytes.shape:
            shapes = tuple(given.shape), tuple(self.weight_bytes.shape)
            errors.append(f"size mismatch for {name}: {shapes[0]} in the checkpoint, {shapes[1]} here")
        else:
            self._take(given)


def _obstacle(linear: torch.nn.Linear, root: torch.nn.Module) -> str | None:
    """Why a layer stays as it is, or None."""
    weight = linear._parameters.get("weight")
    if weight is None:
        return "its weight is computed at each call"
    if "forward" in linear.__dict__:
        return "an earlier step has replaced its forward"
    if weight.device.type != "cpu" or not weight.is_floating_point():
        return f"its weight is {weight.dtype} on {weight.device.type}"
    if not weight.numel() or not bool(weight.isfinite().all()):
        return "its weight is empty, or not finite"
    owners = [m for m in root.modules() if any(p is weight for p in m._parameters.values())]
    return "its weight is tied to another module's" if len(owners) > 1 else None
