"""The typed methods of the steps on modules: what each does, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import torch

from smelt.scheduling.primitives import Steps


class ModuleSteps(Steps):
    """Steps on this module, or on each of a selection."""

    def checkpoint(self) -> Self:
        """Keep only this module's arguments for backward, and compute the rest of it again there.

        before:  y = layer(x)                    what is in the layer is kept until backward
        after:   y = checkpoint(layer, x)        x is kept; backward runs the layer again
        Answers and gradients are the same: random numbers are drawn again as they were, keyword arguments may stand in
        any order, and running statistics of norms count each batch once. Where no gradient is asked for, nothing is
        different. Elsewhere called: checkpoint (torch, Slapo), remat (JAX).
        Raises: ScheduleError (S0607) where the module is never called itself, or has had this step.
        """
        return self.take("checkpoint", {})

    def decompose(self) -> Self:
        """Compute a linear layer as a product and an addition, so that the addition can be matched and fused.

        before:  y = linear(x, weight, bias)     after:  h = linear(x, weight);  y = h + bias
        Parameters and keys stay. Elsewhere called: decompose (Slapo).
        Raises: ScheduleError (S0607) for what is no nn.Linear, or has no bias.
        """
        return self.take("decompose", {})

    def annotate(self, param: str, key: str, value: Any) -> Self:
        """Put a mark on a parameter.

        before:  model.fc.weight                 s["fc"].annotate("weight", "no_decay", True)
        after:   s.build().fc.weight.no_decay is True;  s.annotations == {"fc.weight": {"no_decay": True}}
        param: its name, counted from the module. key: the attribute. Copies and pickles of what is built keep it. With
        `build(share=True)` parameters are the model's own, and stay unmarked. Elsewhere called: annotate (Slapo).
        Raises: ScheduleError (S0607) where there is no such parameter, or tensors have an attribute of that name.
        """
        return self.take("annotate", {"param": param, "key": key, "value": value})

    def fork_rng(self, offset: int = 0) -> Self:
        """Let a module draw random numbers of its own.

        before:  a = dropout(x); b = dropout(y)          how much a draws decides what b gets
        after:   with own(random() + offset): a = dropout(x)
                 b = dropout(y)                          b gets the same, whatever a draws
        One number drawn outside is the seed of those inside; where nothing is drawn inside, none is drawn outside.
        offset: added to it (the rank of a process; for ranks that share a tensor there is `own_rng`). `verify` compares
        with a model that draws so, too.
        Elsewhere called: fork_rng (Slapo), split (JAX).
        Raises: ScheduleError (S0607) where the module is never called itself, or has had this step.
        """
        return self.take("fork_rng", {"offset": offset})

    def layout(self, format: Literal["channels_last", "channels_last_3d"]) -> Self:
        """Store images within a module channel by channel, which convolutions are faster on.

        before:  y = conv(x)             x in memory as [batch, channel, height, width]
        after:   y = plain(conv(nhwc(x)))        within the module: [batch, height, width, channel]
        Shapes and values stay, and results of the module have the layout from before. The layout of weights changes in
        the built module, not in the model.
        Elsewhere called: memory_format (torch).
        Raises: ScheduleError (S0607) for another format, or where the module does not run so on the example inputs
            (a `view` over height and width).
        """
        return self.take("layout", {"format": format})

    def precision(self, dtype: torch.dtype, *, keep: Sequence[str] = (), max_error: float | None = None) -> Self:
        """Compute a module in bf16 or f16, with islands of f32 in it.

        before:  y = softmax(x @ w)                      f32
        after:   y = softmax(f32(bf16(x) @ bf16(w)))     products, convolutions, attention in bf16
        Norms, softmax, losses, sums and powers stay in f32, and so do parameters; results of the module have eager's
        type. keep: modules below that stay in f32 as a whole, by path from here. max_error: the error that the step may
        cause, relative to the rms of the result (bf16 0.05, f16 0.02): measured on the example inputs, shown in the
        printed schedule, and allowed by `verify`. In training, `checkpoint` preserves the islands when it computes
        again; a model's own torch.utils.checkpoint knows autocast alone, and does not. Elsewhere called: autocast
        (torch).
        Raises: ScheduleError: S0623 where the measured error is larger, S0607 for another type, S0601 for a path in
            `keep` that there is not.
        """
        return self.take("precision", {"dtype": dtype, "keep": tuple(keep), "max_error": max_error})

    def quantize(self, dtype: torch.dtype = torch.int8, *, max_error: float | None = None) -> Self:
        """Store the weights of linear layers, in here and below, in bytes, and multiply bytes.

        before:  y = x @ weight.T + bias                          weight: f32[n, k]
        after:   y = (bytes(x) @ bytes.T) * scales + bias         bytes: i8[n, k], a scale a row of either
        The inputs become bytes as they come, row by row. Layers with tied weights, and those that are no plain
        nn.Linear, stay. Keys stay: checkpoints are read into bytes, and written as the numbers that these represent.
        Weights are no parameters any more: gradients flow through them, not to them. max_error: as of `precision`
        (0.1).
        Elsewhere called: quantize_dynamic (torch).
        Raises: ScheduleError: S0623 where the measured error is larger, S0607 where there is no layer to quantize.
        """
        return self.take("quantize", {"dtype": dtype, "max_error": max_error})

    def print_at(self, which: Literal["input", "output"] = "output", *, values: bool = False) -> Self:
        """Print what a module gives, or is given, whenever it is called.

        before:  y = fc(x)          after:  y = fc(x);  print("fc: output float32[2, 4] min -1.2 mean 0.1 max 1.5")
        values: the whole tensors, too. Runs of `verify` print nothing. Elsewhere called: Print (Slapo).
        Raises: ScheduleError (S0607) where the module is never called itself.
        """
        return self.take("print_at", {"which": which, "values": values})
