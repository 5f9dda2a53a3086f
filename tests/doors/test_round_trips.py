"""Programs in and out through `torch.fx` and `torch.export`, against eager."""

from __future__ import annotations

import copy
import enum
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import smelt
from smelt import CaptureError
from tests.doors.programs import CASES, Case, assert_alike, assert_same_call, fresh
from tests.forked import torch_forks

_NAMES = [case.name for case in CASES]


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)


@pytest.mark.parametrize("case", CASES, ids=_NAMES)
def test_out_to_fx(case: Case) -> None:
    module = case.make().eval()
    eager = copy.deepcopy(module)
    with torch.no_grad():
        args, kwargs = fresh(case.calls[0])
        program = smelt.trace(module, args, kwargs)
        eager(*fresh(case.calls[0])[0], **fresh(case.calls[0])[1])
        out = program.to_fx()
        assert isinstance(out, GraphModule)
        for args, kwargs in case.calls:
            assert_same_call(out, eager, args, kwargs)
    assert_alike(dict(module.named_buffers()), dict(eager.named_buffers()))
    assert set(dict(module.named_parameters())) >= set(dict(out.named_parameters()))


@pytest.mark.spread(10)
@pytest.mark.parametrize("case", CASES, ids=_NAMES)
def test_in_from_export(case: Case) -> None:
    module = case.make().eval()
    eager = copy.deepcopy(module)
    with torch.no_grad():
        args, kwargs = fresh(case.calls[0])
        exported = torch.export.export(module, args, kwargs)
        before = {k: v.clone() for k, v in exported.state_dict.items()}
        program = smelt.from_exported(exported)
        assert_alike(dict(exported.state_dict), before)  # nothing is left of the recorded run
        for args, kwargs in case.calls:
            assert_same_call(program, eager, args, kwargs)
    assert program.native_failure is None


@pytest.mark.spread(6)
@pytest.mark.parametrize("case", CASES, ids=_NAMES)
def test_out_and_in_again(case: Case) -> None:
    module = case.make().eval()
    eager = copy.deepcopy(module)
    with torch.no_grad():
        args, kwargs = fresh(case.calls[0])
        program = smelt.trace(module, args, kwargs)
        eager(*fresh(case.calls[0])[0], **fresh(case.calls[0])[1])
        if kwargs:
            with pytest.raises(CaptureError, match="input"):
                smelt.from_fx(program.to_fx())
            return
        again = smelt.from_fx(program.to_fx(), args)
        for args, _ in case.calls:
            assert_same_call(again, eager, args, {})


@pytest.mark.spread(6)
@pytest.mark.parametrize("case", CASES, ids=_NAMES)
def test_in_from_make_fx(case: Case) -> None:
    """Flat inputs, ATen only, with what torch noted of them: no example is needed."""
    module = case.make().eval()
    with torch.no_grad():
        flat, tensors = _flat(module, case.calls[0])
        gm = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
        eager = copy.deepcopy(module)  # whose buffers torch has written in tracing it
        program = smelt.from_fx(gm)
        for call in case.calls:
            assert_same_call(program, *_flat(eager, call), {})


def _flat(module: torch.nn.Module, call: Any) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A call as a function of its tensors, and these."""
    leaves, form = pytree.tree_flatten(fresh(call))

    def flat(*tensors: torch.Tensor) -> Any:
        left = iter(tensors)
        given = [next(left) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(given, form)
        return module(*args, **kwargs)

    return flat, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def test_a_container_of_the_arguments_is_returned() -> None:
    x, items = torch.ones(3), [torch.zeros(3), torch.full((3,), 2.0)]
    out = smelt.trace(lambda x, items: (x + 1, items), (x, items)).to_fx()
    assert_alike(out(x, items), (x + 1, items))


def test_what_is_left_in_a_container_is_refused() -> None:
    def keep(x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
        items.append(x + 1)
        return x * 2

    with pytest.raises(CaptureError, match="containers") as caught:
        smelt.trace(keep, (torch.ones(3), [torch.ones(3)])).to_fx()
    assert caught.value.code == "S0108"


class _Kind(enum.Enum):
    RED = "red"
    BLUE = "blue"


class _Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


_PAIRS = [
    (_Kind.RED, _Kind.BLUE), (_Level.LOW, _Level.HIGH), (torch.float64, torch.float16), (slice(0, 2), slice(1, 2)),
    (range(3), range(4)), (torch.channels_last, torch.contiguous_format), (torch.device("cpu"), torch.device("meta")),
    (2**70, 2**71), (-(2**63), 1),
    (3, 4), (3, 3.0), (1, True), (True, False), (True, 1), (0.5, 1.5), (2.0, 2), (0.0, -0.0), (-0.0, 0.0),
    (float("nan"), 0.5), (0.5, float("nan")), ("a", "b"), (None, 1), (1j, 2j), (2 + 0j, 2.0),
]  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.parametrize(("was", "other"), _PAIRS)
def test_what_goes_out_holds_for_the_numbers_of_the_capture(was: object, other: object) -> None:
    x = torch.ones(3)
    out = smelt.trace(lambda x, n: x + 1 if n else x * 2, (x, was)).to_fx()
    for module in (out, _pickled(out)):
        assert_alike(module(x, was), x + 1 if was else x * 2)
        with pytest.raises(AssertionError, match="graph holds only where"):
            module(x, other)


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().add_(1) * len(x)


def _in_fours(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x * 2 if x.shape[0] % 4 == 0 else x
    return y * n + x.shape[0] if x.shape[0] * x.shape[1] < 100 else y - n


def _one_more(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[1:] * y if x.shape[0] == y.shape[0] + 1 else x


def _one_less(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _one_more(y, x)


_WIDE, _TALL = torch.rand(3, 4), torch.rand(4, 3)
_HEADS: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[tuple[Any, ...]], list[tuple[tuple[Any, ...], str]]]] = [
    (
        _by_rows, (_WIDE,), {}, [(_WIDE,), (torch.rand(4, 4)[:3],)],
        [
            ((torch.rand(2, 4),), r"args\[0\] is f32\[3, 4\]"),
            ((torch.rand(3),), r"f32\[3, 4\]"),
            ((_WIDE.double(),), r"f32\[3, 4\]"),
            ((_TALL.t(),), "row by row in memory"),
        ],
    ),
    (
        _by_rows, (_TALL.t(),), {}, [(_TALL.t(),)],
        [((_WIDE,), "with these strides"), ((torch.rand(3, 8)[:, ::2],), "with these strides")],
    ),
    (_by_rows, (torch.rand(1, 4),), {}, [(torch.rand(4, 1).t(),), (torch.rand(1, 8)[:, :4],)], []),
    (
        _in_fours, (torch.rand(8, 4), 3), {"dynamic_shapes": {"x": {0: "B", 1: "C"}, "n": "n"}},
        [(torch.rand(8, 4), 5), (torch.rand(12, 4), 0), (torch.rand(16, 2), -3)],
        [
            ((torch.rand(9, 4), 3), r"B % 4 == 0 \(.*in _in_fours\)"),
            ((torch.rand(40, 4), 3), "<= 99"),
            ((torch.rand(8), 3), r"f32\[B, C\]"),
            ((torch.rand(8, 4), 2.5), r"args\[1\] is of type int"),
            ((torch.rand(8, 4), True), "of type int"),
        ],
    ),
    (
        lambda x, scale: x * scale if scale > 0.5 else x, (_WIDE, 0.75), {"dynamic_shapes": {"scale": "s"}},
        [(_WIDE, 1.5)], [((_WIDE, 0.25), "s > 0.5"), ((_WIDE, 1), "of type float")],
    ),
    (
        lambda x, y: x[:, :2] @ y, (torch.rand(3, 8)[:, ::2], torch.rand(2, 3)),
        {"dynamic_shapes": ({0: "B"}, {1: "D"})},
        [(torch.rand(5, 8)[:, ::2], torch.rand(2, 2))],
        [((torch.rand(5, 4), torch.rand(2, 2)), "with these strides"), ((_WIDE[:, ::2], torch.rand(2, 2)), "is f32")],
    ),
    (
        _one_more, (torch.rand(5), torch.rand(4)), {"dynamic_shapes": ({0: "A"}, {0: "B"})},
        [(torch.rand(8), torch.rand(7))], [((torch.rand(7), torch.rand(7)), r"\(A - 1\)")],
    ),
    (
        _one_less, (torch.rand(4), torch.rand(5)), {"dynamic_shapes": ({0: "A"}, {0: "B"})},
        [(torch.rand(7), torch.rand(8))], [((torch.rand(7), torch.rand(7)), r"\(A \+ 1\)|\(B - 1\)")],
    ),
]  # fmt: skip


@pytest.mark.spread(10)
@pytest.mark.parametrize("head", _HEADS, ids=["rows", "columns", "one", "sizes", "floats", "strides", "more", "less"])
@pytest.mark.parametrize("door", ["as it is", "pickled", "torch.compile", "smelt.compile"])
def test_what_goes_out_holds_for_the_inputs_of_the_capture(head: Any, door: str) -> None:
    """Sizes, dtypes, strides and guards: the right answer, or an error."""
    fn, args, free, good, bad = head
    out = smelt.trace(fn, fresh((args, {}))[0], **free).to_fx()
    doors: dict[str, Any] = {
        "as it is": out,
        "pickled": _pickled(out),
        "torch.compile": torch.compile(out, backend="eager", fullgraph=True),
        "smelt.compile": smelt.compile(out),
    }
    module = doors[door]
    for call in good:
        assert_same_call(module, fn, call, {})
    for call, told in bad:
        # Dynamo may come to an operator that does not fit first.
        kinds = (AssertionError, RuntimeError) if door == "torch.compile" else AssertionError
        with pytest.raises(kinds, match=None if door == "torch.compile" else told):
            module(*call)


def test_what_goes_out_holds_for_tensors_that_are_one_or_not() -> None:
    x, y = torch.ones(3), torch.ones(3)
    two = smelt.trace(lambda a, b: a.add_(1) * b, (x, y)).to_fx()
    one = smelt.trace(lambda a, b: a.add_(1) * b, (x, x)).to_fx()
    for module in (two, _pickled(two)):
        assert_alike(module(torch.ones(3), y), torch.full((3,), 2.0))
        with pytest.raises(AssertionError, match="two tensors"):
            module(x, x)
    for module in (one, _pickled(one)):
        z = torch.ones(3)
        assert_alike(module(z, z), torch.full((3,), 4.0))
        with pytest.raises(AssertionError, match="one tensor"):
            module(z, y)


def test_what_cannot_be_one_tensor_is_not_asked_for() -> None:
    """Dynamo breaks its graph where torch is asked; of sparse tensors torch cannot tell."""
    x, counts, sparse = torch.ones(3, 3), torch.ones(3, 3, dtype=torch.int64), torch.eye(3).to_sparse()
    for other in (counts, torch.ones(1, 3)):
        out = smelt.trace(lambda a, b: a.add_(1) * b, (x.clone(), other)).to_fx()
        compiled = torch.compile(out, backend="eager", fullgraph=True)
        assert_alike(compiled(x.clone(), other), torch.full((3, 3), 2.0))
    out = smelt.trace(lambda a, b: a.add_(1) * b.to_dense(), (x.clone(), sparse)).to_fx()
    assert_alike(out(x.clone(), sparse), 2 * torch.eye(3))


def test_what_goes_out_holds_for_the_layouts_of_the_capture() -> None:
    sparse, dense = torch.eye(3).to_sparse(), torch.eye(3)

    def fn(a: torch.Tensor) -> torch.Tensor:
        return a.to_dense() * 2 if a.layout is torch.sparse_coo else a + 1

    for was, other in ((sparse, dense), (dense, sparse)):
        program = smelt.trace(fn, (was,))
        module = program.to_fx()
        assert_alike(module(was), fn(was))
        with pytest.raises(AssertionError, match="graph holds only where"):
            module(other)
        with pytest.raises(CaptureError, match="has layout"):
            program.code.run(other)


def test_a_rounded_number_goes_through_pickle() -> None:
    x = torch.ones(8)
    for fn in (lambda x, s: x * 2 if round(s) > 2 else x, lambda x, s: x[: round(s)] * 2):
        out = smelt.trace(fn, (x, 3.2), dynamic_shapes={"s": "s"}).to_fx()
        for module in (out, _pickled(out)):
            for s in (3.2, 4.5, 5.5):
                assert_alike(module(x, s), fn(x, s))


def _pickled(module: GraphModule) -> Any:
    """Traced again by torch.fx, with proxies for values."""
    return pickle.loads(pickle.dumps(module))


def _told(x: torch.Tensor) -> Any:
    n = int(x[0])
    items = [int(x[1]), n, 7]
    return "-".join([str(n), "b"]), str(n).rjust(3, "."), sorted(items, key=lambda i: (i * 5) % 7), items.count(7)


def test_methods_of_pythons_classes_go_out() -> None:
    out = smelt.trace(_told, torch.tensor([3, 12])).to_fx()
    assert not any("smelt" in str(getattr(node.target, "__module__", "")) for node in out.graph.nodes)
    for values in ([3, 12], [6, 4], [7, 7]):
        assert out(torch.tensor(values)) == _told(torch.tensor(values))


def test_a_symbolic_trace_needs_examples() -> None:
    gm = torch.fx.symbolic_trace(lambda x, y: torch.relu(x) + y)
    with pytest.raises(CaptureError, match="example_inputs") as caught:
        smelt.from_fx(gm)
    assert caught.value.code == "S0106"
    program = smelt.from_fx(gm, (torch.ones(3), torch.ones(3)))
    for n in (3, 5):  # other sizes are captured when they come
        x, y = torch.randn(n), torch.randn(n)
        torch.testing.assert_close(program(x, y), torch.relu(x) + y)


def test_the_module_itself_is_left_alone() -> None:
    gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)))
    text, random = gm.code, torch.get_rng_state()
    program = smelt.from_fx(gm, torch.ones(2, 4))
    assert gm.code == text and torch.equal(torch.get_rng_state(), random)
    assert next(program.parameters()) is next(gm.parameters())


@pytest.mark.parametrize("what", [None, torch.nn.Linear(2, 2), 3])
def test_what_is_no_program(what: object) -> None:
    for door in (smelt.from_fx, smelt.from_exported):
        with pytest.raises(CaptureError) as caught:
            door(what)
        assert caught.value.code == "S0106" and caught.value.why and caught.value.fix


def test_dynamic_sizes_of_an_exported_program() -> None:
    class Flat(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(x.shape[0] * x.shape[1], -1).sum(0) / x.shape[0]

    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(Flat(), (torch.randn(4, 3, 5),), dynamic_shapes=({0: rows},))
    program = smelt.from_exported(exported)
    for n in (4, 2, 7, 64, 4):
        x = torch.randn(n, 3, 5)
        torch.testing.assert_close(program(x), Flat()(x))
    with pytest.raises(Exception, match=r"64|rows|shape"):
        program(torch.randn(65, 3, 5))


def test_an_exported_program_without_examples() -> None:
    module = torch.nn.Linear(4, 2)
    exported = torch.export.export(module, (torch.randn(3, 4),))
    exported._example_inputs = None
    program, x = smelt.from_exported(exported), torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(program(x), module(x))


def test_what_goes_out_runs_without_smelt(tmp_path: object) -> None:
    module, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval(), torch.randn(3, 4)
    with torch.no_grad():
        out = smelt.trace(module, x).to_fx()
        path = f"{tmp_path}/program.pt"
        torch.save((out, x, module(x)), path)
    code = f"""
import sys, torch
sys.modules["smelt"] = None  # any import of it is an error
gm, x, y = torch.load({path!r}, weights_only=False)
torch.testing.assert_close(gm(x), y)
"""
    torch_forks().run(code)


def test_nothing_of_smelt_goes_out() -> None:
    """torch.fx cannot unpickle higher-order operators: so their modules are looked into."""

    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            y = x.sin()
        else:
            y = x.cos()
        for i in range(int(n)):
            y = y * i + x
        while y.abs().sum() > 1:
            y = y * 0.5
        return y

    out = smelt.trace(program, (torch.ones(4), torch.tensor(3))).to_fx()
    graphs = [m.graph for m in out.modules() if isinstance(m, GraphModule)]
    assert len(graphs) == 1 + 2 * 3
    for graph in graphs:
        for node in graph.nodes:
            assert not getattr(node.target, "__module__", "").startswith("smelt")
    for sign in (1, -1):
        for n in (0, 4):
            args = (torch.full((4,), 3.0 * sign), torch.tensor(n))
            torch.testing.assert_close(out(*args), program(*args))
