"""Each operator's samples as an ONNX model: onnxruntime gives what eager gives, or the form says why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.evaluate import evaluate
from smelt.ops.record import OpRecord, Sample
from tests.codegen.test_lower_catalogue import sample_graph
from tests.onnx.harness import Session, assert_alike, exported, model_of

_LACKS = ("could not find an implementation", "does not support double")


def _has_infinity(sample: Sample) -> bool:
    return any(isinstance(a, torch.Tensor) and a.is_floating_point() and bool(a.isinf().any()) for a in sample.args)


def _is_double(sample: Sample) -> bool:
    tensors = [a for arg in sample.args for a in (arg if isinstance(arg, (list, tuple)) else (arg,))]
    return any(isinstance(a, torch.Tensor) and a.dtype is torch.float64 for a in tensors)


def _found(message: Any, tensors: list[torch.Tensor], sample: Sample) -> list[Any] | None:
    """The outputs; None where onnxruntime has no kernel of that element type."""
    try:
        return Session(message).run({f"in{i}": t for i, t in enumerate(tensors)})
    except Exception as error:  # onnxruntime's own share no class
        assert _is_double(sample) and any(text in str(error).lower() for text in _LACKS), error
        return None


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore:torch.meshgrid:UserWarning")
@pytest.mark.parametrize("record", [r for r in CATALOGUE if not r.uninitialised], ids=lambda r: r.name)
def test_samples_equal_eager(record: OpRecord) -> None:
    for sample in record.samples():
        if record.name == "aten.gelu.default" and _has_infinity(sample):
            continue  # of which eager makes NaN or infinity as its vectors fall
        graph, tensors = sample_graph(record, sample)
        model = model_of(graph)
        if model.refused:
            assert all(each.why for each in model.refused)
            assert record.name in REFUSED, (record.name, model.refused)
            continue
        wanted = evaluate(graph, [t.clone() for t in tensors])
        found = _found(model.message({}), tensors, sample)
        if found is not None:
            assert_alike(found, wanted)


_RANDOM = ("rand", "randn", "randint", "randn_like", "rand_like", "bernoulli", "multinomial")
_SHIFTS = ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
REFUSED = frozenset(
    (
        *(f"aten.{name}.{form}" for name in _RANDOM for form in ("default", "low")),
        *(f"aten.{name}.{form}" for name in _SHIFTS for form in ("Tensor", "Tensor_Scalar", "Scalar")),
        "aten.meshgrid.indexing", "aten.diagonal_scatter.default", "aten.diag_embed.default",
        "aten.as_strided.default", "aten.as_strided_scatter.default",
        "aten._grouped_mm.default", "aten._pack_padded_sequence.default",
        "aten._pad_packed_sequence.default", "aten.lstm.data", "aten.gru.data", "aten.rnn_tanh.data",
        "aten.rnn_relu.data",
    )
)  # fmt: skip
"""Operators of which some sample has no form."""


def test_most_samples_have_a_form() -> None:
    assert len([r for r in CATALOGUE if r.name in REFUSED]) <= 27
    forms = [r for r in CATALOGUE if r.onnx is not None or r.lower is not None]
    assert len(forms) >= len(CATALOGUE) - 8


_INF = float("inf")


def _of_nan(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        *x.max(1), *x.min(0), x.amax(1), x.min(), x.argmax(1), x.argmin(), *x.sort(-1), *x.sort(-1, descending=True),
        F.max_pool2d(x[None, None], 2), F.relu(x), F.relu6(x), x.clamp(0, 1), x.sign(), x.any(), x.all(1), x.softmax(1),
        x.logsumexp(1), torch.maximum(x, x.flip(0)), torch.fmax(x, x.flip(0)), torch.linalg.vector_norm(x, _INF, 1),
        torch.atan2(x, x.flip(1)), x % 2, x // 2, x != x, torch.where(x > 0, x, -x), F.leaky_relu(x), F.elu(x),
    )  # fmt: skip


def test_nan_and_infinity_go_where_they_go_in_eager(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, nan, 3.0, -inf], [2.0, 5.0, -1.0, inf], [nan, nan, -0.0, 1.0]])
    with torch.no_grad():
        model = exported(smelt.trace(_of_nan, (x,)), tmp_path)
        assert_alike(Session(model.path).run({"x0": x}), _of_nan(x))


def _of_images(x: torch.Tensor, weight: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """x f32[2, 4, 6, 6], weight f32[4, 4, 3, 3], grid f32[2, 3, 5, 2]."""
    rows = x.flatten(2)
    return (
        F.pad(x.transpose(1, 3), (1, 2, 0, 1)).transpose(1, 3), F.pad(x, (1, 1, 2, 0), mode="reflect"),
        F.unfold(x, (2, 3), padding=1, stride=2), F.pixel_shuffle(x, 2), F.interpolate(x, scale_factor=2.0),
        F.interpolate(x, size=(9, 4), mode="bilinear"), F.interpolate(x, size=(8, 8), mode="bicubic"),
        F.interpolate(x, size=(9, 9), mode="bilinear", align_corners=True), F.grid_sample(x, grid, align_corners=False),
        F.batch_norm(x, None, None, training=True), F.instance_norm(x), F.glu(x, 1), F.max_pool1d(rows, 3, 2),
        F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, (3, 4)), F.adaptive_avg_pool1d(rows, 5),
        F.conv_transpose2d(x, weight, stride=2, padding=1, output_padding=1), F.conv1d(rows, weight[:, :, 0], groups=1),
        F.conv3d(x[:, None], weight[:, :1, None]), F.group_norm(x, 2), F.max_pool2d(x[0], 2, ceil_mode=True),
        torch._weight_norm(weight, weight[:, :1, :1, :1] + 2, 0),
    )  # fmt: skip


def _of_rows(x: torch.Tensor, times: torch.Tensor, limits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """x f32[3, 4], times i64[3], limits f32[5], in order."""
    where = x > 0
    return (
        x.repeat_interleave(times, 0), torch.repeat_interleave(times), x.repeat_interleave(2, 1), x.diff(),
        torch.bucketize(x, limits), torch.bucketize(x, limits, right=True), torch.searchsorted(limits, x),
        torch.histc(x, 6, -2, 2), x.scatter_reduce(1, times.expand(3, 3) % 4, x[:, :3], "amax"),
        x.index_fill(1, times[:2], 7.0), x.masked_scatter(where, x.flip(0)), x[where], x[times % 3, :2],
        x[:, times % 4],
        x.logsumexp(0), x.std(1), x.var(), x.cumsum(1), torch.outer(x[0], x[1]), x.roll(1, 0), x.tril(),
        x.movedim(0, 1), x.unflatten(1, (2, 2)), torch.einsum("ij,kj->ik", x, x), x.norm(dim=1, p=3),
        F.cross_entropy(x, times), F.nll_loss(x, times, reduction="none"), F.one_hot(times, 5), x.unfold(1, 2, 1),
        torch.stack([x, x + 1], 1), x.argsort(1), (times << 2) + (times >> 1), times // 2 + times % 2, ~times & 3,
    )  # fmt: skip


def test_operators_and_functions_that_are_several(tmp_path: Path) -> None:
    torch.manual_seed(6)
    images = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3), torch.rand(2, 3, 5, 2) * 2 - 1
    rows = torch.randn(3, 4), torch.tensor([2, 0, 3]), torch.tensor([-1.5, -0.5, 0.0, 0.5, 1.0])
    with torch.no_grad():
        for program, given in ((_of_images, images), (_of_rows, rows)):
            model = exported(smelt.trace(program, given), tmp_path)
            assert_alike(Session(model.path).run(dict(zip(model.inputs, given, strict=True))), program(*given))
