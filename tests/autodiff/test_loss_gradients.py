"""Gradients of losses in all their forms: reductions, weights, ignored classes, smoothing, probabilities, logits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from smelt.autodiff import joint_graph
from smelt.diag import SmeltError
from smelt.ops.record import Sample, sample
from smelt.ops.samples import floats, ints, positives
from tests.autodiff.gradient_harness import check_gradients, graph_of

CLASSES = torch.tensor([0, 3, 2, 1, 3])
SHAPES = ((floats(5, 4), CLASSES), (floats(2, 4, 3), ints(2, 3, low=0, high=4)), (floats(4), torch.tensor(2)))
WEIGHT = positives(4, seed=3)


def _classes() -> Iterator[tuple[str, Sample]]:
    for reduction in (0, 1, 2):
        for x, target in SHAPES:
            logs = x.log_softmax(-1)
            for ignored in (-100, 2):
                for weight in (None, WEIGHT):
                    yield "nll_loss_nd.default", sample(logs, target, weight, reduction, ignored)
                    yield "cross_entropy_loss.default", sample(x, target, weight, reduction, ignored)
                yield "cross_entropy_loss.default", sample(x, target, None, reduction, ignored, 0.1)
            for weight in (None, WEIGHT):
                for smoothing in (0.0, 0.2):
                    p = floats(*x.shape, seed=5).softmax(0 if x.dim() == 1 else 1)
                    yield "cross_entropy_loss.default", sample(x, p, weight, reduction, -100, smoothing)
    for smoothing in (0.0, 0.2):
        yield "cross_entropy_loss.default", sample(floats(2, 4), torch.tensor([-100, -100]), None, 1, -100, smoothing)
    yield "nll_loss_nd.default", sample(floats(2, 4), torch.tensor([-100, 1]))
    yield "cross_entropy_loss.default", sample(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), None, 2)


def _elements() -> Iterator[tuple[str, Sample]]:
    x, t = (
        torch.tensor([[0.0, 1.0, -1.0, 0.5], [3.0, -0.25, 2.0, 1.5]]),
        torch.tensor([[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 2.0, 0.5]]),
    )
    p, q = floats(3, 4).sigmoid(), floats(3, 4, seed=1).sigmoid()
    for reduction in (0, 1, 2):
        for name, more in (("mse", ()), ("l1", ()), ("smooth_l1", ()), ("smooth_l1", (0.5,)), ("huber", (0.75,))):
            yield f"{name}_loss.default", sample(x, t, reduction, *more)
        for weight in (None, positives(4, seed=2)):
            yield "binary_cross_entropy.default", sample(p, q, weight, reduction)
            for positive in (None, positives(4, seed=4)):
                yield "binary_cross_entropy_with_logits.default", sample(floats(3, 4), q, weight, positive, reduction)
        for log_target in (False, True):
            yield "kl_div.default", sample(floats(3, 4), q.log() if log_target else q, reduction, log_target=log_target)
    yield "mse_loss.default", sample(torch.tensor(1.0), torch.tensor(3.0))


CALLS = [*_classes(), *_elements()]


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", sorted({name for name, _ in CALLS}))
def test_values(name: str) -> None:
    for one, call in CALLS:
        if one == name:
            is_weighed = name.startswith("cross_entropy") and call.args[1].is_floating_point()
            fixed = () if is_weighed else ("weight", "pos_weight")
            assert check_gradients(f"aten.{name}", call, fixed=fixed) == 0, call


def test_weights_have_no_gradient() -> None:
    graph, _ = graph_of("aten.nll_loss_nd.default", sample(floats(5, 4), CLASSES, WEIGHT))
    with pytest.raises(SmeltError, match="no gradient for its weight"):
        joint_graph(graph)
    assert joint_graph(graph, ["x1"]).wrt == ("x1",)
