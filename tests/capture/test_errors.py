"""What cannot be captured is an error at the user's line; the program itself runs as always."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch import tensor as make_tensor

import smelt
from smelt._torch.seen.dispatch import Level, is_recording, levels
from smelt.capture import capture, is_capturing
from smelt.diag import CaptureError, Miss
from smelt.ops.evaluate import evaluate

A = torch.tensor([1.0, 2.0, -3.0])
N = torch.tensor([1, 0, 2])


def branch(a):
    return a * 2 if a.sum() > 0 else a - 1


def in_list(a):
    return a * torch.tensor([a[0], a[1], 1.0])


def contains(a):
    return a + (1.0 in a)


def formatted(a):
    return a, f"{a[0]:.2f}"


def printed(a):
    return a, str(a)


def sliced(a, i):
    return a[: i[0]]


def listed(a):
    return sum(a.tolist()) + a


def as_numpy(a):
    return a + torch.from_numpy(a.numpy() * 2)


def parameter_read(model, a):
    return a * model.weight[0, 0].item()


CONVERSIONS = {
    "branch": (branch, (A,)),
    "bool": (lambda a: bool(a[0]), (A,)),
    "while": (lambda a: [a for _ in range(int(a[1]))], (A,)),
    "item": (lambda a: a * a[0].item(), (A,)),
    "in_list": (in_list, (A,)),
    "alias_of_tensor": (lambda a: make_tensor([a[0]]), (A,)),
    "new_tensor": (lambda a: a.new_tensor([a[0], 2.0]), (A,)),
    "as_tensor": (lambda a: torch.as_tensor([a[0], 2.0]), (A,)),
    "contains": (contains, (A,)),
    "equal": (lambda a: torch.equal(a, a + 1), (A,)),
    "allclose": (lambda a: torch.allclose(a, a + 1), (A,)),
    "formatted": (formatted, (A,)),
    "printed": (printed, (A,)),
    "tolist": (listed, (A,)),
    "numpy": (as_numpy, (A,)),
    "array": (lambda a: np.asarray(a).sum(), (A,)),
    "list_index": (lambda a, i: [a, a + 1, a + 2][i[0]], (A, N)),
    "tensor_index": (lambda a, i: a[i[0]], (A, N)),
    "slice": (sliced, (A, N)),
    "size": (lambda i: torch.zeros(i[0]), (N,)),
    "range": (lambda i: list(range(i[2])), (N,)),
    "random_is_data": (lambda a: a * torch.rand(1).item(), (A,)),
    "parameter_is_data": (parameter_read, (nn.Linear(3, 3), A)),
    "written_constant": (lambda a: (c := torch.zeros(3), c.copy_(a), c[0].item())[2], (A,)),
    "address": (lambda a: a.data_ptr(), (A,)),
    "sorted": (lambda a: sorted([a[0], a[1]]), (A,)),
}
SIZES = {
    "mask": (lambda a: a[a > 0], (A,)),
    "nonzero": (lambda a: a.nonzero(), (A,)),
    "where": (lambda a: torch.where(a > 0), (A,)),
    "masked_select": (lambda a: a.masked_select(a > 0), (A,)),
    "unique": (lambda a: a.unique(), (A,)),
    "bincount": (lambda i: i.bincount(), (N,)),
    "repeat_interleave": (lambda a, i: a.repeat_interleave(i), (A, N)),
    "one_hot": (lambda i: torch.nn.functional.one_hot(i), (N,)),
}


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversion_is_an_error_and_the_run_goes_on(name: str, level: Level) -> None:
    fn, args = CONVERSIONS[name]
    if name == "random_is_data":
        torch.manual_seed(3)
    expected = fn(*args)
    torch.manual_seed(3)
    captured = capture(fn, args, level=level)
    assert captured.error is not None and captured.graph is None, name
    assert captured.error.code == "S0101"
    assert captured.error.where.file == __file__
    if name != "address":
        assert repr(captured.result) == repr(expected)
    assert captured.conversions


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", SIZES)
def test_data_dependent_size_is_an_error(name: str, level: Level) -> None:
    fn, args = SIZES[name]
    captured = capture(fn, args, level=level)
    assert captured.error is not None and captured.error.code in ("S0102", "S0101")
    if level == "entry":
        assert captured.error.code == "S0102"
    assert captured.error.where.file == __file__
    assert repr(captured.result) == repr(fn(*args))


def test_sizes_that_do_not_depend_on_data_are_captured() -> None:
    for fn, args in (
        (lambda i: torch.nn.functional.one_hot(i, 4), (N,)),
        (lambda a, i: a.repeat_interleave(i, output_size=3), (A, N)),
        (lambda a: a[torch.tensor([True, False, True])], (A,)),
        (lambda a: a.index_put((a > 0,), torch.tensor(0.0)), (A,)),
    ):
        assert capture(fn, args).error is None


def test_error_names_type_origin_reason_and_cure() -> None:
    error = capture(branch, (A,)).error
    text = str(error)
    assert "error[S0101]" in text and "bool[]" in text and "aten.gt.Scalar" in text
    assert "test_errors.py" in text and "in branch" in text and "why:" in text and "fix:" in text


@pytest.mark.parametrize("level", levels())
def test_tensor_made_in_another_thread(level: Level) -> None:
    def threaded(a):
        made: list[torch.Tensor] = []
        worker = threading.Thread(target=lambda: made.append(a * 3))
        worker.start()
        worker.join()
        return made[0] + 1

    captured = capture(threaded, (A,), level=level)
    assert captured.error is not None and captured.error.code == "S0103"
    assert torch.equal(captured.result, A * 3 + 1)


def test_other_threads_are_not_recorded() -> None:
    stop, seen = threading.Event(), []

    def work():
        t = torch.ones(2)
        while not stop.is_set():
            t = t * 1
            seen.append(is_recording())

    worker = threading.Thread(target=work)
    worker.start()
    try:
        captured = capture(lambda a: [a + i for i in range(200)], (A,))
    finally:
        stop.set()
        worker.join()
    assert captured.error is None and len(captured.graph.body) == 200 and not any(seen)


def test_two_threads_capture_at_once() -> None:
    results: dict[int, Any] = {}

    def work(n: int) -> None:
        results[n] = capture(lambda a: [a * n for _ in range(100)], (A,))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for n, captured in results.items():
        assert captured.error is None and len(captured.graph.body) == 100
        assert all(node.args[1] == n for node in captured.graph.walk())


class Stop(Exception):
    pass


def _patched_names() -> dict[str, Any]:
    names = {f"Tensor.{n}": vars(torch.Tensor).get(n) for n in ("tolist", "numpy", "__repr__", "data", "as_subclass")}
    return names | {
        "call": nn.Module.__call__,
        "forward": nn.Linear.forward,
        "compile": torch.compile,
        "has": torch.overrides.has_torch_function,
        "get": torch._ops.OpOverload._get_dispatch,
        "pre": [op for op in (torch.ops.aten.mul.Tensor, torch.ops.aten.linear.default)
                if torch._C.DispatchKey.PreDispatch in op._dispatch_cache],
        "tls": torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch),
        "excluded": torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradCPU),
        "python": torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher),
        "modes": torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack(),
    }  # fmt: skip


@pytest.mark.parametrize("level", levels())
def test_exceptions_pass_unchanged_and_everything_is_undone(level: Level) -> None:
    linear, error = nn.Linear(3, 3), Stop("user's own")

    def fails(a):
        linear(a * 2).tolist()
        raise error

    before = _patched_names()
    with pytest.raises(Stop) as caught:
        capture(fails, (A,), level=level)
    assert caught.value is error
    assert _patched_names() == before
    assert not is_capturing()
    capture(linear, (A,), level=level)
    assert _patched_names() == before


@pytest.mark.parametrize("level", levels())
def test_caught_operator_errors_do_not_end_the_capture(level: Level) -> None:
    def tries(a):
        try:
            a @ torch.ones(7)
        except RuntimeError:
            a = a + 1
        return a

    captured = capture(tries, (A,), level=level)
    assert captured.error is None and torch.equal(captured.result, A + 1)


def test_nested_capture_is_refused() -> None:
    with pytest.raises(CaptureError, match="inside another"):
        capture(lambda a: capture(torch.sin, (a,)).result, (A,))


def test_rebinding_data_is_an_error() -> None:
    def rebinds(a):
        b = a.clone()
        b.data = a + 1
        return b * 2

    captured = capture(rebinds, (A,))
    assert captured.error is not None and captured.error.code == "S0104"
    assert torch.equal(captured.result, (A + 1) * 2)


@pytest.mark.parametrize("level", levels())
def test_write_into_a_numpy_array_is_an_error(level: Level) -> None:
    array = np.ones(3, np.float32)
    captured = capture(lambda a: torch.from_numpy(array).add_(a), (A,), level=level)
    assert captured.error is not None and captured.error.code == "S0104"
    assert np.array_equal(array, 1 + A.numpy())


@pytest.mark.parametrize(
    "argument",
    [np.ones(3), {A}, (i for i in [A]), A.as_subclass(type("Sub", (torch.Tensor,), {}))],
    ids=["numpy", "set", "generator", "subclass"],
)
def test_argument_that_cannot_be_followed(argument: Any) -> None:
    captured = capture(lambda a, b: b * 2, (argument, A))
    assert captured.error is not None and captured.error.code == "S0106"
    assert torch.equal(captured.result, A * 2)


def test_lazy_result_is_an_error() -> None:
    def lazy(a):
        yield a + 1

    captured = capture(lazy, (A,))
    assert captured.error is not None and captured.error.code == "S0104"
    assert torch.equal(next(captured.result), A + 1)


@pytest.mark.parametrize(
    "fn",
    [lambda a: {a + 1}, lambda a: {"k": a + 1}.items(), lambda a: (lambda: b) if (b := a + 1) is not None else None],
    ids=["set", "view", "closure"],
)
def test_result_that_hides_tensors_is_an_error(fn: Any) -> None:
    captured = capture(fn, (A,))
    assert captured.error is not None and captured.error.code == "S0104"


def test_generator_argument_is_an_error() -> None:
    generator = torch.Generator().manual_seed(0)
    captured = capture(lambda a: a + torch.rand(3, generator=generator), (A,))
    assert captured.error is not None and captured.error.code == "S0104"


def test_custom_operator_is_one_node_whatever_it_does_inside() -> None:
    @torch.library.custom_op("smelt_capture::twice", mutates_args=())
    def twice(a: torch.Tensor) -> torch.Tensor:
        return torch.tensor([2 * v for v in a.tolist()])

    captured = capture(lambda a: twice(a) + 1, (A,))
    assert captured.error is None
    assert [node.op for node in captured.graph.walk()] == ["smelt_capture.twice.default", "aten.add.Tensor"]
    assert torch.equal(captured.result, 2 * A + 1)


def test_a_check_keeps_what_was_read_before_a_later_write() -> None:
    def fn(a):
        flag = a[0] > 0
        b = a + 1 if flag else a - 1
        return b * a[1].item(), flag.logical_not_()

    captured = capture(fn, (A,), specialize=True)
    assert captured.error is None
    assert [(c.what, c.value, c.is_checked) for c in captured.conversions] == [
        ("is_nonzero", True, True), ("item", 2.0, True),
    ]  # fmt: skip
    assert [node.args[1] for node in captured.graph.walk() if node.op == "expect"] == [True, 2.0]
    for found, expected in zip(evaluate(captured.graph, [A]), fn(A), strict=True):
        assert torch.equal(found, expected)
    with pytest.raises(Miss, match="expected True, found False"):
        evaluate(captured.graph, [-A])


def test_a_quantized_module_is_named_with_the_way_round() -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    for make in (lambda: smelt.trace(model, (x,)), lambda: smelt.script(model)):
        with pytest.raises(smelt.CaptureError, match=r"quantized\.linear_dynamic\S* was called with a") as error:
            make()
        assert "packed weights of a quantized module" in error.value.why
        assert "smelt.compile" in error.value.fix
    with pytest.warns(smelt.SmeltWarning, match="as partitions"):
        compiled = smelt.compile(model)
        for given in (x, x + 1, torch.ones(5, 4)):
            assert torch.equal(compiled(given), model(given))


@pytest.mark.filterwarnings("ignore")
def test_a_nested_tensor_runs_as_it_is() -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        n = torch.nested.nested_tensor([x[:1], x])
        return torch.nested.to_padded_tensor(n * 2, 0.0)

    def twice(n: torch.Tensor) -> torch.Tensor:
        return torch.nested.to_padded_tensor(n * 2, 0.0) if n.is_nested else n * 2

    inside, given = smelt.compile(rows), smelt.compile(twice)
    for size in (3, 3, 2, 3):
        x = torch.ones(size, 4)
        assert torch.equal(inside(x), rows(x))
        for n in (x, torch.nested.nested_tensor([x[:1], x]), x):
            assert torch.equal(given(n), twice(n))
    with pytest.raises(CaptureError, match="a nested tensor was used"):
        smelt.trace(rows, (torch.ones(3, 4),))
    with pytest.raises(CaptureError, match=r"args\[0\] is a nested tensor"):
        smelt.trace(twice, (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),))
