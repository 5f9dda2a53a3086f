"""Ready schedules by spelling: what is found, what is taken, what is told, on small modules written by hand."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt import schedules

_CAUSAL = torch.tril(torch.ones(5, 5)).bool()
_ROWS = torch.arange(5.0)


class _Attention(nn.Module):
    def __init__(self, core):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=i != 1) for i in range(4))
        self.drop, self.core = nn.Dropout(0.2), core

    def heads(self, y):
        return y.view(2, 5, 4, 4).transpose(1, 2)

    def forward(self, x):
        y = self.core(self, self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x)))
        return self.o(y.transpose(1, 2).reshape(2, 5, 16))


def _product(s, q, k, v):
    return torch.softmax(q @ k.mT * 0.5, -1) @ v


def _quotient(s, q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(4), -1) @ v


def _scaled_q(s, q, k, v):
    return F.softmax((q / 2) @ k.permute(0, 1, 3, 2), 3) @ v


def _dropped(s, q, k, v):
    return s.drop(F.softmax((q @ k.transpose(-1, -2) * 0.5).masked_fill(~_CAUSAL, float("-inf")), -1)) @ v


def _added(s, q, k, v):
    return F.softmax(torch.zeros(5, 5).masked_fill(~_CAUSAL, -1e9) + q @ k.transpose(2, 3) / 2, -1).matmul(v)


def _taken_away(s, q, k, v):
    return F.softmax(torch.matmul(q, k.transpose(2, 3)) / 2 - 1e9 * (1 - _CAUSAL.float()), -1).matmul(v)


def _chosen(s, q, k, v):
    return torch.where(_CAUSAL, q @ k.mT, float("-inf")).softmax(-1) @ v


def _two_masks(s, q, k, v):
    return (q @ k.mT + _ROWS).masked_fill(~_CAUSAL, -1e10).softmax(-1) @ v


def _cast(s, q, k, v):
    return s.drop(F.softmax((q @ k.mT * 0.5 + _ROWS).float(), -1, dtype=torch.float32).to(q.dtype)) @ v


def _batched(s, q, k, v):
    q, k, v = (t.reshape(8, 5, 4) for t in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.5, -1), v).view(2, 4, 5, 4)


def _summed(s, q, k, v):
    p = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(0.5).masked_fill(~_CAUSAL, float("-inf")).softmax(-1)
    return s.drop(torch.einsum("bhqk,bhkd->bhqd", p, v))


def _summed_in_place(s, q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    p = torch.einsum("b q h d, b k h d -> b h q k", q, k).softmax(-1)
    return torch.einsum("bhij,bjhd->bihd", p, v).transpose(1, 2)


def _summed_the_other_way(s, q, k, v):
    p = torch.softmax(torch.einsum("...kd,...qd->...qk", k, q) / 2 + _ROWS, -1)
    return torch.einsum("...kd,...qk->...qd", v, p)


def _half_summed(s, q, k, v):
    return torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1) @ v


def _other_half_summed(s, q, k, v):
    return torch.einsum("bhqk,bhkd->bhqd", (q @ k.mT * 0.3).softmax(-1), v)


def _grouped(s, q, k, v):
    q, k, v = q.view(2, 2, 2, 5, 4), k[:, ::2].unsqueeze(2), v[:, ::2].unsqueeze(2)
    return ((q @ k.mT / 2 + _ROWS).softmax(-1) @ v).reshape(2, 4, 5, 4)


def _grouped_summed(s, q, k, v):
    p = torch.einsum("bhgqd,bhkd->bhgqk", q.view(2, 2, 2, 5, 4), k[:, ::2]).softmax(-1)
    return torch.einsum("bhgqk,bhkd->bhgqd", p, v[:, 1::2]).reshape(2, 4, 5, 4)


def _repeated(s, q, k, v):
    k, v = k[:, ::2].repeat_interleave(2, 1), v[:, ::2, None].expand(2, 2, 2, 5, 4).reshape(2, 4, 5, 4)
    return (q @ k.mT).softmax(-1) @ v


def _folded(s, q, k, v):
    q, k, v = (t.reshape(8, 5, 4) for t in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(2, 4, 5, 5) * 0.5
    scores = scores.masked_fill(~_CAUSAL, torch.finfo(scores.dtype).min) + torch.arange(4.0).view(4, 1, 1) * _ROWS
    return torch.bmm(s.drop(scores.view(8, 5, 5).softmax(-1)), v).view(2, 4, 5, 4)


def _folded_late(s, q, k, v):
    p = (q @ k.mT + _ROWS).softmax(-1).reshape(8, 5, 5)
    return torch.bmm(p, v.reshape(8, 5, 4)).view(2, 4, 5, 4)


def _with_start(s, q, k, v):
    q, k, v = (t.reshape(8, 5, 4) for t in (q, k, v))
    start = torch.zeros(5, 5, dtype=q.dtype).masked_fill(~_CAUSAL, float("-inf")).expand(8, 5, 5)
    scores = torch.baddbmm(start, q, k.transpose(1, 2), beta=2.0, alpha=0.5)
    return torch.bmm(scores.softmax(-1), v).view(2, 4, 5, 4)


def _with_empty_start(s, q, k, v):
    q, k, v = (t.reshape(8, 5, 4) for t in (q, k, v))
    start = torch.full((8, 5, 5), float("nan"), dtype=q.dtype)
    scores = torch.baddbmm(start, q, k.transpose(1, 2), beta=0, alpha=0.5).view(2, 4, 5, 5) + _ROWS
    return torch.bmm(scores.softmax(-1).view(8, 5, 5), v).view(2, 4, 5, 4)


def _start_seen(s, q, k, v):
    q, k, v = (t.reshape(8, 5, 4) for t in (q, k, v))
    scores = (
        _ROWS.to(q.dtype).expand(8, 1, 5).baddbmm(q, k.transpose(1, 2)).view(2, 4, 5, 5).masked_fill(~_CAUSAL, -1e9)
    )
    return torch.bmm(scores.softmax(-1).view(8, 5, 5), v).view(2, 4, 5, 4)


def _chosen_by_tensor(s, q, k, v):
    return torch.where(~_CAUSAL, torch.full([], -1e10, dtype=q.dtype), q @ k.mT).softmax(-1) @ v


def _chosen_other_way(s, q, k, v):
    return torch.where(~_CAUSAL, float("-inf"), q @ k.mT).softmax(-1) @ v


def _by_tensor(s, q, k, v):
    return (q @ k.mT / torch.sqrt(torch.tensor(4.0)) + _ROWS).softmax(-1) @ v


def _by_head(s, q, k, v):
    return (torch.arange(1.0, 5.0).view(4, 1, 1) * (q @ k.mT) + _ROWS).softmax(-1) @ v


def _written_out(s, q, k, v):
    scores = (q @ k.mT * 0.5).masked_fill(~_CAUSAL, -1e9)
    e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return (e / torch.sum(e, dim=-1, keepdim=True)) @ v


def _written_out_detached(s, q, k, v):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) + _ROWS
    e = (scores - scores.amax(3, True).detach()).exp()
    return s.drop(e / e.sum(-1, True)) @ v


def _by_logarithm(s, q, k, v):
    return F.log_softmax(q @ k.mT / 2, -1).exp() @ v


_SPELLINGS = (
    _product, _quotient, _scaled_q, _dropped, _added, _taken_away, _chosen, _two_masks, _cast, _batched, _summed,
    _summed_in_place, _summed_the_other_way, _half_summed, _other_half_summed, _grouped, _grouped_summed, _repeated,
    _folded, _folded_late, _with_start, _with_empty_start, _start_seen, _chosen_by_tensor, _chosen_other_way,
    _by_tensor, _by_head, _written_out, _written_out_detached, _by_logarithm,
)  # fmt: skip


def _ops(schedule, path=""):
    return [node.op for node in schedule._state.scope(path).edited.graph.walk()]


@pytest.mark.spread(26)
@pytest.mark.parametrize("core", _SPELLINGS, ids=lambda core: core.__name__)
def test_attention_in_any_spelling_becomes_one_operator(core):
    model, x = _Attention(core).eval(), torch.randn(2, 5, 16)
    ready = schedules.inference(model, x)
    assert ready.found == {"merged linears": 3, "attention": 1} == ready.applied and ready.skipped == ()
    left = _ops(ready.schedule)
    assert left.count("aten.scaled_dot_product_attention.default") == 1
    assert not any(part in op for op in left for part in ("softmax", "bmm", "matmul", "einsum", "exp."))
    assert left.count("aten.linear.default") == 1  # the output's; q, k and v are one call
    ready.schedule.verify()
    built = ready.schedule.build()
    assert list(built.state_dict()) == list(model.state_dict())
    exact = copy.deepcopy(model).double()(x.double())
    with torch.no_grad():
        torch.testing.assert_close(built(x).double(), exact, atol=1e-6, rtol=1e-5)
    for module in (model, built):
        module.zero_grad()
        (module(x) * torch.arange(16.0)).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(built.get_parameter(name).grad, parameter.grad, atol=1e-4, rtol=1e-4, msg=name)


def test_attention_that_is_one_operator_already_is_told():
    model, x = _Attention(lambda s, q, k, v: F.scaled_dot_product_attention(q, k, v)).eval(), torch.randn(2, 5, 16)
    ready = schedules.inference(model, x)
    assert ready.applied == {"merged linears": 3} and ready.found["attention"] == 0
    assert ready.notes == ("attention: 1 already one operator, scaled_dot_product_attention",)
    assert ready.notes[0] in str(ready).splitlines()
    assert schedules.inference(_Attention(_product).eval(), x).notes == ()


def test_a_finite_fill_must_swallow_the_scores_of_the_dtype():
    """In f64, -1e9 and a score are not -1e9: a row that is masked throughout would not be of equal ones."""
    core = lambda s, q, k, v: (q @ k.mT).masked_fill(torch.ones(5, 5, dtype=torch.bool), s.fill).softmax(-1) @ v  # noqa: E731
    for fill, taken in ((-1e9, 0), (torch.finfo(torch.float64).min, 1)):
        model, x = _Attention(core).eval().double(), torch.randn(2, 5, 16, dtype=torch.float64)
        model.fill = fill
        ready = schedules.inference(model, x)
        assert ready.applied.get("attention", 0) == taken
        torch.testing.assert_close(ready.schedule.build()(x), model(x), rtol=1e-9, atol=1e-12)


def test_rows_that_are_masked_throughout_are_zeros_and_others_as_they_were():
    hidden = torch.zeros(5, 5, dtype=torch.bool)
    hidden[3] = True
    core = lambda s, q, k, v: (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v  # noqa: E731
    model, x = _Attention(core).eval(), torch.randn(2, 5, 16)
    model.o = nn.Identity()
    built = schedules.inference(model, x).schedule.build()
    expected, got = model(x), built(x)
    assert expected[:, 3].isnan().all() and torch.equal(got[:, 3], torch.zeros(2, 16))
    rest = [0, 1, 2, 4]
    torch.testing.assert_close(got[:, rest], expected[:, rest])


@pytest.mark.spread(4)
@pytest.mark.parametrize("core", [_folded, _summed_in_place, _grouped_summed, _with_start], ids=lambda c: c.__name__)
def test_a_call_that_the_step_does_not_fit_runs_as_it_is(core):
    """What a mode or a dtype changes is no error: the step computes what was there."""
    model, x = _Attention(core).eval(), torch.randn(2, 5, 16)
    built = schedules.inference(model, x).schedule.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for training in (True, False):
            torch.manual_seed(1)
            expected = model.train(training)(x)
            torch.manual_seed(1)
            torch.testing.assert_close(built.train(training)(x), expected, atol=1e-5, rtol=1e-5)


def test_dropout_of_attention_is_drawn_as_before_in_training():
    model, x = _Attention(_dropped).train(), torch.randn(2, 5, 16)
    built = schedules.inference(model, x).schedule.build()
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    torch.testing.assert_close(built(x), expected)
    assert not torch.equal(built(x), expected)  # drawn anew
    torch.testing.assert_close(built.eval()(x), model.eval()(x))


def test_the_steps_are_ordinary_ones():
    model, x = _Attention(_cast).eval(), torch.randn(2, 5, 16)
    s = smelt.schedule(model, x)
    ready = schedules.inference(s)
    assert ready.schedule is s and [step.primitive for step in s.log] == ["fuse_horizontal", "replace"]
    expected = s.build()(x)
    other = smelt.apply(s.to_json(), _Attention(_cast).eval(), x)
    other.verify()
    assert [step.primitive for step in other.log] == [step.primitive for step in s.log]
    assert torch.equal(smelt.apply(s.to_json(), model, x).build()(x), expected)
    s.undo().undo()
    assert len(s.log) == 0 and torch.equal(s.build()(x), model(x))


def _weights_used(s, q, k, v):
    p = torch.softmax(q @ k.mT / 2, -1)
    return p @ v + p.sum()


def _part_of_a_mask(s, q, k, v):
    return (q @ k.mT).masked_fill(~_CAUSAL, -2.0).softmax(-1) @ v


def _other_axis(s, q, k, v):
    return (q @ k.mT).softmax(-2) @ v


def _scaled_mask(s, q, k, v):
    return ((q @ k.mT + _ROWS) * 0.5).softmax(-1) @ v


def _larger_scores(s, q, k, v):
    return ((q @ k.mT + torch.zeros(3, 1, 1, 1, 1)).softmax(-1) @ v)[0]


def _bare(s, q, k, v):
    e = (q @ k.mT).exp()
    return e / e.sum(-1, keepdim=True) @ v


def _heads_summed(s, q, k, v):
    return torch.einsum("bhqk,bhkd->bqd", (q @ k.mT).softmax(-1), v)[:, None].expand(2, 4, 5, 4)


def _unknown_fill(s, q, k, v):
    return (q @ k.mT).masked_fill(~_CAUSAL, -1e9 - q.detach().abs().sum()).softmax(-1) @ v


def _other_mask_by_head(s, q, k, v):
    return ((q @ k.mT) * _CAUSAL.float()).softmax(-1) @ v


@pytest.mark.parametrize(
    "core",
    [
        _weights_used, _part_of_a_mask, _other_axis, _scaled_mask, _larger_scores, _bare, _heads_summed, _unknown_fill,
        _other_mask_by_head,
    ],
    ids=lambda core: core.__name__,
)  # fmt: skip
def test_what_one_operator_does_not_compute_is_left_and_told(core):
    model, x = _Attention(core).eval(), torch.randn(2, 5, 16)
    ready = schedules.inference(model, x)
    assert ready.found["attention"] == 1 and "attention" not in ready.applied
    assert len(ready.skipped) == 1 and ready.skipped[0].startswith("attention at the whole: ")
    assert "skipped attention" in str(ready) and "attention: 1 found, 0 applied" in str(ready)
    ready.schedule.verify()


def test_a_model_with_nothing_to_find_takes_no_step():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanhshrink()).eval(), torch.randn(3, 4)
    for take in (schedules.inference, schedules.low_memory):
        ready = take(model, x)
        assert len(ready.schedule.log) == 0 and not ready.applied and not ready.skipped
        assert torch.equal(ready.schedule.build()(x), model(x))


class _Grows(_Attention):
    """Writes into its argument: its graph takes no step."""

    def forward(self, x, seen):
        seen.append(x)
        return super().forward(x)


class _Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.after = _Grows(_product), _Attention(_quotient)

    def forward(self, x):
        seen = []
        y = self.after(self.inner(x, seen))
        return y * len(seen) if float(y.sum()) < 1e9 else y


class _Apart(nn.Module):
    """Uses the parts of another module, which is itself never called."""

    def __init__(self):
        super().__init__()
        self.parts = _Attention(_product)

    def forward(self, x):
        p = self.parts
        return p.o(p.q(x) + p.k(x) + p.v(x)) if float(x.sum()) < 1e9 else x


def test_a_module_that_cannot_be_captured_is_told_and_others_take_their_steps():
    model, x = _Outer().eval(), torch.randn(2, 5, 16)
    ready = schedules.inference(model, x)
    assert ready.found == {"merged linears": 6, "attention": 2}
    assert ready.applied == {"merged linears": 3, "attention": 1}
    assert any(text.startswith("attention at inner") for text in ready.skipped)
    assert any(text.startswith("merged linears at inner") for text in ready.skipped)
    ready.schedule.verify()


def test_a_module_that_is_never_called_takes_no_step():
    model, x = _Apart().eval(), torch.randn(2, 5, 16)
    ready = schedules.inference(model, x)
    assert ready.found["merged linears"] == 3 and not ready.applied
    assert all(text.startswith("merged linears at parts") for text in ready.skipped) and len(ready.skipped) == 3
    ready.schedule.verify()


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        self.up, self.norm, self.out = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.act(self.bn(self.conv(x))).mean((2, 3))
        return self.norm(self.out(F.gelu(self.up(y))) + y)


def test_regions_are_counted_and_fused_where_that_is_asked_for():
    model, x = _Net().eval(), torch.randn(2, 3, 8, 8)
    found = {"linear and activation": 1, "sum and norm": 1, "convolution, norm and activation": 1}
    ready = schedules.inference(model, x)
    assert {name: ready.found[name] for name in found} == found
    assert len(ready.schedule.log) == 0 and all("fuse=True" in text for text in ready.skipped)
    ready = schedules.inference(model, x, fuse=True)
    # Whether a region pays is measured; either way it is told.
    assert sum(ready.applied.values()) == len(ready.schedule.log) and len(ready.schedule.log) + len(ready.skipped) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)  # in training, batch norm is not in a region
        ready.schedule.verify()


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(x)))


def _saved(model, x):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        model(x)
    return sum(kept)


def test_low_memory_checkpoints_blocks_of_one_class_in_a_list():
    inner = nn.Sequential(_Block(), _Block())
    model, x = nn.Sequential(nn.Linear(8, 8), *(_Block() for _ in range(3)), inner), torch.randn(4, 8)
    ready = schedules.low_memory(model, x)
    assert ready.found == {"repeated blocks": 5} == ready.applied
    assert ready.schedule.verify() is not None
    assert _saved(ready.schedule.build(), x) < _saved(model, x) / 2
    part = schedules.low_memory(smelt.schedule(model)["4"])
    assert part.found == {"repeated blocks": 2} and [step.path for step in part.schedule.log] == ["4.*"]


def test_bf16_takes_the_whole_or_the_parts_that_are_within_the_error():
    model, x = nn.Sequential(_Block(), nn.LayerNorm(8), _Block()).eval(), torch.randn(4, 8)
    ready = schedules.bf16(model, x)
    assert ready.found == {"products": 4, "f32 islands": 1} and ready.applied["products"] == 4
    assert [step.path for step in ready.schedule.log] == [""] and ready.skipped == ()
    ready.schedule.verify()
    built = ready.schedule.build()
    assert built(x).dtype == torch.float32 and all(p.dtype == torch.float32 for p in built.parameters())
    assert not torch.equal(built(x), model(x))
    none = schedules.bf16(model, x, max_error=0.0)
    assert len(none.schedule.log) == 0 and "products" not in none.applied and none.skipped
    assert torch.equal(none.schedule.build()(x), model(x))


def test_example_inputs_belong_to_the_schedule():
    model, x = _Block(), torch.randn(4, 8)
    for take in (schedules.inference, schedules.low_memory, schedules.bf16):
        with pytest.raises(smelt.ScheduleError, match="has its example inputs already"):
            take(smelt.schedule(model, x), x)
