"""Every instruction and every builder against eager, native and interpreted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt._torch.library import mkldnn
from smelt.diag import InternalError, SmeltError
from smelt.runtime import calls
from smelt.runtime.executable import Executable
from smelt.runtime.plan import (
    ArenaTensor,
    Call,
    CheckLayout,
    Copy,
    Dispatch,
    Empty,
    Instruction,
    Out,
    Plan,
    PyCall,
    Release,
    Use,
    View,
)

Runner = Callable[[Plan], Executable]
aten = torch.ops.aten


def run(
    runner: Runner, inputs: Sequence[torch.Tensor], instructions: Sequence[Instruction], out: int, **kw: Any
) -> Any:
    nslots = 1 + max(out, len(inputs), *(s for s, _ in kw.get("held", ((0, None),)))) + 8
    plan = Plan(nslots, tuple(range(len(inputs))), (out,), tuple(instructions), **kw)
    executable = runner(plan)
    first = executable.run(inputs)[0]
    second = executable.run(inputs)[0]  # a frame used again gives the same
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)
    assert not first.requires_grad
    return first


def same(got: torch.Tensor, want: torch.Tensor, *, exact: bool = True) -> None:
    assert got.dtype == want.dtype
    if exact:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    else:
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "sliced": lambda: torch.randn(9, 13)[1::2, 1::2],
    "expanded": lambda: torch.randn(4, 1).expand(4, 6),
    "offset": lambda: torch.randn(5, 6)[1:],
    "special": lambda: torch.tensor([[float("nan"), float("inf"), -0.0, 1e-42, -1.0, 2.0]] * 4),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_input_layouts(runner: Runner, layout: str) -> None:
    x, y = LAYOUTS[layout](), torch.randn(6, 3)
    same(run(runner, [x, x], [calls.add(2, 0, 1)], 2), x + x)
    same(run(runner, [x, x], [calls.mul(2, 0, 1)], 2), x * x)
    same(run(runner, [x], [Dispatch(aten.relu.default, (Use(0),), (1,))], 1), x.relu())
    same(run(runner, [x], [Dispatch(aten.softmax.int, (Use(0), -1), (1,))], 1), x.softmax(-1))
    got = run(runner, [x, y], [Empty(2, (4, 3), (3, 1), torch.float32), calls.mm_out(2, 0, 1)], 2)
    torch.testing.assert_close(got, x @ y, equal_nan=True)


@pytest.mark.spread(2)
@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (1,), (1, 1, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_shapes_and_dtypes(runner: Runner, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, shape).to(dtype)
    same(run(runner, [x, x], [calls.mul(2, 0, 1)], 2), x * x)
    same(run(runner, [x], [Dispatch(aten.clone.default, (Use(0),), (1,))], 1), x.clone())
    strides = torch.empty(shape).stride()
    got = run(runner, [x], [Empty(1, shape, strides, torch.float32), Copy(1, 0)], 1)
    same(got, x.float())
    assert got.stride() == strides


def test_scalar_calls(runner: Runner) -> None:
    x = torch.randn(5)
    same(run(runner, [x], [calls.add_scalar(1, 0, 0.1)], 1), x + 0.1)
    same(run(runner, [x], [calls.mul_scalar(1, 0, -0.0)], 1), x * -0.0)
    same(run(runner, [x], [calls.pow_scalar(1, 0, 3.0)], 1), x**3)
    same(run(runner, [x, x], [calls.add(2, 0, 1, alpha=0.3)], 2), torch.add(x, x, alpha=0.3))


def test_products(runner: Runner) -> None:
    a, b, c = torch.randn(3, 4, 5), torch.randn(3, 5, 6), torch.randn(3, 4, 6)
    empty = Empty(5, (3, 4, 6), (24, 6, 1), torch.float32)
    same(run(runner, [a, b], [empty, calls.bmm_out(5, 0, 1)], 5), a @ b)
    got = run(runner, [c, a, b], [empty, calls.baddbmm_out(5, 0, 1, 2, beta=0.5, alpha=2.0)], 5)
    same(got, torch.baddbmm(c, a, b, beta=0.5, alpha=2.0))
    empty = Empty(5, (4, 6), (6, 1), torch.float32)
    got = run(runner, [c[0], a[0], b[0]], [empty, calls.addmm_out(5, 0, 1, 2)], 5)
    same(got, torch.addmm(c[0], a[0], b[0]))


@pytest.mark.parametrize(
    ("post", "algorithm", "scalars"),
    [
        ("none", None, ()), ("relu", None, ()), ("gelu", "none", ()), ("gelu", "tanh", ()), ("swish", None, ()),
        ("tanh", None, ()), ("sigmoid", None, ()), ("hardswish", None, ()), ("leaky_relu", None, (0.1,)),
        ("hardtanh", None, (0.0, 6.0)),
    ],
)  # fmt: skip
def test_packed_linear(runner: Runner, post: str, algorithm: str | None, scalars: tuple[float, ...]) -> None:
    x, w, b = torch.randn(7, 32), torch.randn(24, 32), torch.randn(24)
    packed = mkldnn.pack_linear(w)
    assert packed is not None
    call = calls.packed_linear(3, 0, 1, 2, post=post, algorithm=algorithm, scalars=scalars)
    check = CheckLayout(3, (7, 24), (24, 1), torch.float32)
    got = run(runner, [x], [call, check], 3, held=((1, packed), (2, b)))
    want = calls._apply_post(F.linear(x, w, b), post, scalars, algorithm)
    same(got, want, exact=False)


def test_packed_linear_adds_and_takes_no_bias(runner: Runner) -> None:
    x, w, other = torch.randn(2, 7, 32), torch.randn(24, 32), torch.randn(2, 7, 24)
    packed = mkldnn.pack_linear(w)
    assert packed is not None
    got = run(runner, [x, other], [calls.packed_linear(3, 0, 2, None, other=1)], 3, held=((2, packed),))
    same(got, F.linear(x, w) + other, exact=False)


def test_mkl_linear(runner: Runner) -> None:
    if not mkldnn.has_mkl_linear():
        assert mkldnn.pack_mkl_linear(torch.randn(2, 2), 1) is None
        return
    x, w, b = torch.randn(7, 32), torch.randn(24, 32), torch.randn(24)
    packed = mkldnn.pack_mkl_linear(w, 7)
    assert packed is not None
    got = run(runner, [x], [calls.mkl_linear(4, 0, 1, 2, 3, 7)], 4, held=((1, packed), (2, w), (3, b)))
    same(got, F.linear(x, w, b), exact=False)


@pytest.mark.spread(4)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("groups", [1, 4])
def test_convolutions(runner: Runner, memory_format: torch.memory_format, groups: int) -> None:
    x = torch.randn(2, 4, 9, 9).contiguous(memory_format=memory_format)
    w, b = torch.randn(8, 4 // groups, 3, 3), torch.randn(8)
    kw: dict[str, Any] = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": groups}
    want = F.conv2d(x, w, b, **kw)
    plain = run(runner, [x], [calls.convolution(3, 0, 1, 2, **kw)], 3, held=((1, w), (2, b)))
    same(plain, want, exact=False)
    packed = mkldnn.pack_convolution(w, input_size=x.shape, **kw)
    assert packed is not None
    held = ((1, packed), (2, b))
    strides = want.contiguous(memory_format=torch.channels_last).stride()
    check = CheckLayout(3, tuple(want.shape), strides, torch.float32)
    got = run(runner, [x], [calls.packed_convolution(3, 0, 1, 2, post="relu", **kw), check], 3, held=held)
    same(got, want.relu(), exact=False)
    other = torch.randn_like(want)
    call = calls.packed_convolution(4, 0, 2, 3, other=1, post="relu", **kw)
    got = run(runner, [x, other], [call], 4, held=((2, packed), (3, b)))
    same(got, (want + other).relu(), exact=False)


def test_transposed_convolution(runner: Runner) -> None:
    x, w = torch.randn(1, 4, 5), torch.randn(4, 3, 3)
    kw: dict[str, Any] = {"stride": (2,), "padding": (1,), "dilation": (1,)}
    got = run(runner, [x, w], [calls.convolution(2, 0, 1, None, transposed=True, output_padding=(1,), **kw)], 2)
    same(got, F.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1), exact=False)


@pytest.mark.parametrize("masked", [False, True])
def test_flash_attention(runner: Runner, masked: bool) -> None:
    q, k, v = (torch.randn(2, 3, 8, 16) for _ in range(3))
    mask = torch.randn(8, 8)
    call = calls.flash_attention(4, 5, 0, 1, 2, mask=3 if masked else None, scale=0.25)
    got = run(runner, [q, k, v, mask], [call, Release((5,))], 4)
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask if masked else None, scale=0.25)
    same(got, want, exact=False)
    call = calls.flash_attention(4, 5, 0, 1, 2, is_causal=True)
    same(
        run(runner, [q, k, v], [call, Release((5,))], 4),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        exact=False,
    )


def test_attention_keeps_the_layout_of_strided_queries(runner: Runner) -> None:
    qkv = torch.randn(1, 8, 3 * 48)
    views = [View(1 + i, 0, (1, 3, 8, 16), (1152, 16, 144, 1), 48 * i) for i in range(3)]
    check = CheckLayout(4, (1, 3, 8, 16), (384, 16, 48, 1), torch.float32)
    join = View(6, 4, (1, 8, 48), (384, 48, 1))
    got = run(runner, [qkv], [*views, calls.flash_attention(4, 5, 1, 2, 3), check, join], 6)
    q, k, v = (t.view(1, 8, 3, 16).transpose(1, 2) for t in qkv.split(48, -1))
    same(got, F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 8, 48), exact=False)


DISPATCHED: dict[str, tuple[Any, Callable[[], list[torch.Tensor]], tuple[Any, ...]]] = {
    "layer_norm": (aten.layer_norm.default, lambda: [torch.randn(3, 8), torch.ones(8)], (Use(0), (8,), Use(1))),
    "gelu": (aten.gelu.default, lambda: [torch.randn(9)], (Use(0), "tanh")),
    "gelu_default": (aten.gelu.default, lambda: [torch.randn(9)], (Use(0),)),
    "embedding": (aten.embedding.default, lambda: [torch.randn(9, 4), torch.tensor([1, 8, 0])], (Use(0), Use(1))),
    "softmax": (aten.softmax.int, lambda: [torch.randn(3, 5)], (Use(0), 1, torch.float64)),
    "max_pool2d": (aten.max_pool2d.default, lambda: [torch.randn(1, 2, 8, 8)], (Use(0), (3, 3), (2, 2), (1, 1))),
    "sum": (aten.sum.dim_IntList, lambda: [torch.randn(3, 5)], (Use(0), (0, -1), True)),
    "mean": (aten.mean.dim, lambda: [torch.randn(3, 5)], (Use(0), (-1,))),
    "cat": (aten.cat.default, lambda: [torch.randn(3, 5), torch.randn(2, 5)], ((Use(0), Use(1)), 0)),
    "index": (aten.index.Tensor, lambda: [torch.randn(3, 5), torch.tensor([4, 0])], (Use(0), (None, Use(1)))),
    "argmax": (aten.argmax.default, lambda: [torch.randn(3, 5)], (Use(0), -1)),
    "to": (aten._to_copy.default, lambda: [torch.randn(3)], (Use(0), torch.float64)),
    "clamp_none": (aten.clamp.Tensor, lambda: [torch.randn(3), torch.zeros(3)], (Use(0), Use(1), None)),
    "zeros": (aten.zeros.default, lambda: [], ((2, 3), torch.int32, None, torch.device("cpu"))),
    "upsample": (aten.upsample_nearest2d.vec, lambda: [torch.randn(1, 1, 2, 2)], (Use(0), None, (2.0, 2.0))),
    "clone": (aten.clone.default, lambda: [torch.randn(1, 2, 3, 4)], (Use(0), torch.channels_last)),
    "add_scalar": (aten.add.Tensor, lambda: [torch.randn(3), torch.randn(3)], (Use(0), Use(1), 2)),
    "logical_not": (aten.logical_not.default, lambda: [torch.tensor([True, False])], (Use(0),)),
    "einsum": (aten.einsum.default, lambda: [torch.randn(2, 3), torch.randn(3, 4)], ("ij,jk->ki", (Use(0), Use(1)))),
}  # fmt: skip


@pytest.mark.parametrize("name", DISPATCHED)
def test_dispatch(runner: Runner, name: str) -> None:
    op, make, args = DISPATCHED[name]
    inputs = make()

    def fill(arg: Any) -> Any:
        if isinstance(arg, Use):
            return inputs[arg.slot]
        return [fill(a) for a in arg] if isinstance(arg, tuple) else arg

    names = [a.name for a in op._schema.arguments]
    keyword = [a.kwarg_only for a in op._schema.arguments]
    filled = [fill(a) for a in args]
    n = keyword.index(True) if True in keyword else len(names)
    want = op(*filled[:n], **dict(zip(names[n:], filled[n:], strict=False)))
    got = run(runner, inputs, [Dispatch(op, args, (5,))], 5)
    same(got, want)
    assert got.stride() == want.stride()


def test_dispatch_of_several_results(runner: Runner) -> None:
    x = torch.randn(3, 8)
    args = (Use(0), (8,), None, None, 1e-5)
    got = run(runner, [x], [Dispatch(aten.native_layer_norm.default, args, (1, None, 2))], 2)
    same(got, torch.native_layer_norm(x, [8], None, None, 1e-5)[2])


def test_dispatch_counts(machine_code: bytes) -> None:
    native = Dispatch(aten.relu.default, (Use(0),), (1,))
    scalar = Dispatch(aten.add.Tensor, (Use(1), Use(1), 2), (2,))  # `alpha` is a Scalar: not through the C door
    executable = Executable(Plan(3, (0,), (2,), (native, scalar)), machine_code)
    x = torch.randn(3)
    same(executable.run([x])[0], torch.add(x.relu(), x.relu(), alpha=2))
    executable.run([x])
    stats = executable.stats
    assert (stats.runs, stats.calls.library, stats.calls.dispatcher, stats.calls.python) == (2, 0, 2, 2)


def test_arena_and_lists(runner: Runner) -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    arena = (
        ArenaTensor(2, 0, (4, 8), (8, 1), torch.float32),
        ArenaTensor(3, 128, (4, 8), (1, 4), torch.float32),
        ArenaTensor(4, 256, (), (), torch.int64),
    )
    steps = [
        calls.mm_out(2, 0, 1),
        calls.mm_out(3, 2, 1),
        PyCall(lambda t, o: o.fill_(t.numel() - 27), (0, 4)),
        calls.cat(5, [2, 3, 2], 1),
        calls.index(6, 5, [None, 4]),
    ]
    got = run(runner, [x], steps, 6, held=((1, w),), arena=arena, arena_nbytes=320)
    joined = torch.cat([x @ w, x @ w @ w, x @ w], 1)
    same(got, joined[:, 5], exact=False)


def test_list_of_one_slot_twice_and_empty_index(runner: Runner) -> None:
    x = torch.randn(2, 3)
    same(run(runner, [x], [calls.cat(1, [0, 0], 0)], 1), torch.cat([x, x]))
    same(run(runner, [x, torch.tensor([1])], [calls.index(2, 0, [1])], 2), x[torch.tensor([1])])


def test_view_counts_from_where_its_source_starts(runner: Runner) -> None:
    x = torch.arange(20.0).view(4, 5)[1:]
    steps = [Dispatch(aten.clone.default, (Use(0),), (1,)), View(2, 1, (3,), (5,), 2), View(3, 2, (2,), (5,), 5)]
    same(run(runner, [x], steps, 3), x[1:, 2])


@pytest.mark.parametrize(
    "planned",
    [
        CheckLayout(0, (2, 4), (3, 1)),
        CheckLayout(0, (2, 3), (1, 2)),
        CheckLayout(0, (6,), (1,)),
        CheckLayout(0, (2, 3), (3, 1), torch.float64),
        CheckLayout(0, (2, 3), (3, 1), torch.uint8),
    ],
)
def test_another_layout_stops_the_run(runner: Runner, planned: CheckLayout) -> None:
    with pytest.raises(SmeltError) as raised:
        runner(Plan(1, (0,), (), (planned,))).run([torch.randn(2, 3)])
    assert raised.value.code == "S0403"


@pytest.mark.parametrize(
    ("tensor", "planned"),
    [
        (torch.empty(2, 3), CheckLayout(0, (2, 3), (3, 1), torch.float32)),
        (torch.empty(2, 3), CheckLayout(0, (2, 3), (None, 1))),
        (torch.empty(1, 3), CheckLayout(0, (1, 3), (77, 1))),
        (torch.empty(0, 3), CheckLayout(0, (0, 3), (77, 78))),
        (torch.empty(()), CheckLayout(0, (), (), torch.float32)),
        (torch.empty(2, dtype=torch.uint8), CheckLayout(0, (2,), (1,), torch.uint8)),
    ],
)
def test_a_layout_that_fits_passes(runner: Runner, tensor: torch.Tensor, planned: CheckLayout) -> None:
    assert runner(Plan(1, (0,), (), (planned,))).run([tensor]) == []


def test_python_gets_the_very_tensors(runner: Runner) -> None:
    x, held = torch.randn(3), torch.randn(3)
    seen: list[Any] = []

    def look(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((a is x, b is held, torch.is_grad_enabled()))
        return a + b, a

    plan = Plan(5, (0,), (2, 3, 2), (PyCall(look, (0, 1), (2, 3)),), held=((1, held),))
    first, alias, again = runner(plan).run([x])
    assert seen == [(True, True, False)]
    assert first is again and alias.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("enabled", [False, True])
def test_grad_mode(runner: Runner, keep: bool, enabled: bool) -> None:
    w = torch.nn.Parameter(torch.randn(3))
    plan = Plan(3, (0,), (2,), (Dispatch(aten.exp.default, (Use(1),), (2,)),), held=((1, w),), keep_grad_mode=keep)
    executable = runner(plan)
    with torch.set_grad_enabled(enabled):
        (result,) = executable.run([w])
        assert torch.is_grad_enabled() == enabled
        assert result.requires_grad == (keep and enabled)
        failing = Plan(1, (0,), (), (CheckLayout(0, (9,), (1,)),))
        with pytest.raises(SmeltError):
            runner(failing).run([w])
        assert torch.is_grad_enabled() == enabled


def test_inference_mode(runner: Runner) -> None:
    x = torch.randn(4, 4)
    arena = (ArenaTensor(1, 0, (4, 4), (4, 1), torch.float32),)
    steps = (calls.mm_out(1, 0, 0), calls.add(2, 1, 1))
    executable = runner(Plan(3, (0,), (2,), steps, arena=arena, arena_nbytes=64))
    with torch.inference_mode():
        assert executable.run([x])[0].is_inference()
    same(executable.run([x])[0], x @ x + x @ x)  # the arena made inside inference mode serves outside too


WRONG_PLANS = {
    "use before": Plan(3, (0,), (2,), (calls.add(2, 0, 1),)),
    "filled twice": Plan(3, (0,), (2,), (calls.add(2, 0, 0), calls.add(2, 0, 0))),
    "fills an input": Plan(3, (0,), (), (calls.add(0, 0, 0),)),
    "released twice": Plan(3, (0,), (), (calls.add(2, 0, 0), Release((2,)), Release((2,)))),
    "used after release": Plan(4, (0,), (), (calls.add(2, 0, 0), Release((2,)), calls.add(3, 2, 2))),
    "releases an input": Plan(3, (0,), (), (Release((0,)),)),
    "input is output": Plan(3, (0,), (0,), ()),
    "output released": Plan(3, (0,), (2,), (calls.add(2, 0, 0), Release((2,)))),
    "view of input": Plan(3, (0,), (2,), (View(1, 0, (1,), (1,)), View(2, 1, (1,), (1,)))),
    "slot out of range": Plan(1, (0,), (), (calls.add(5, 0, 0),)),
    "same input twice": Plan(1, (0, 0), (), ()),
    "arena too small": Plan(1, (), (), (), arena=(ArenaTensor(0, 0, (9,), (1,), torch.float32),), arena_nbytes=35),
    "arena unaligned": Plan(1, (), (), (), arena=(ArenaTensor(0, 4, (1,), (1,), torch.float32),), arena_nbytes=64),
    "outs of dispatch": Plan(3, (0,), (), (Dispatch(aten.relu.default, (Use(0),), (1, 2)),)),
}


@pytest.mark.parametrize("name", WRONG_PLANS)
def test_plans_that_break_the_rules(name: str) -> None:
    with pytest.raises(InternalError):
        Executable(WRONG_PLANS[name], None)


def test_wrong_number_of_inputs(runner: Runner) -> None:
    with pytest.raises(InternalError, match="takes 1 inputs"):
        runner(Plan(1, (0,), (), ())).run([])


def test_an_output_in_the_arena_is_caught(runner: Runner) -> None:
    arena = (ArenaTensor(1, 0, (4, 4), (4, 1), torch.float32),)
    steps = (calls.mm_out(1, 0, 0), Dispatch(aten.contiguous.default, (Use(1),), (2,)))
    executable = runner(Plan(3, (0,), (2,), steps, arena=arena, arena_nbytes=64))
    with pytest.raises(InternalError, match="arena"):
        executable.run([torch.randn(4, 4)])


def test_a_long_argument_list(runner: Runner) -> None:
    # 21 words: beyond registers and the middle class of calls.
    layer = torch.nn.LSTM(4, 5)
    x, h, c = torch.randn(3, 2, 4), torch.zeros(1, 2, 5), torch.zeros(1, 2, 5)
    weights = [p.detach() for p in layer.parameters()]

    def eager(*t: torch.Tensor) -> Any:
        return torch.ops.aten.mkldnn_rnn_layer(*t, False, [], 2, 5, 1, True, False, False, False)

    from smelt.runtime.plan import Ints

    inputs = [x, *weights, h[0], c[0]]
    args = (*(Use(i) for i in range(7)), 0, Ints(()), 0, 2, 5, 1, 1, 0, 0, 0, Out(8), Out(9), Out(10), Out(11))
    got = run(runner, inputs, [Call("aoti_torch_cpu_mkldnn_rnn_layer", args, eager)], 8)
    same(got, layer(x, (h, c))[0].detach(), exact=False)
