"""Steps on the loops of fused kernels: as steps of a schedule, on real models, with other sizes, in search and text."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.codegen.llvm.isa import host_isa
from smelt.scheduling.comparing import measuring

pytestmark = pytest.mark.skipif(host_isa() is None, reason="no own kernels on this machine")


@pytest.fixture(autouse=True)
def faster(monkeypatch, one_thread):
    """What is measured is no part of these tests."""
    monkeypatch.setattr(measuring, "seconds", lambda ways: [way() is None or 2.0 - i for i, way in enumerate(ways)])


class _Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(48, 48), nn.LayerNorm(48)

    def forward(self, x):
        return F.gelu(self.norm(self.fc(x))) + x


class _Model(nn.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.layers = nn.ModuleList([_Layer() for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _tail(y, x, w, b):
    return F.gelu(F.layer_norm(y, (48,), w, b)) + x


def _fused(model, x, name="tail"):
    s = smelt.schedule(model, x)
    layers = s["layers.*"]
    layers.fuse(layers.find(_tail), name=name)
    return s


def _same_bits(s, model, x):
    """The answer is that of the schedule without steps on loops."""
    plain = _fused(model, x).build()
    with torch.no_grad():
        return torch.equal(s.build()(x), plain(x))


STEPS = (
    lambda s: s.tile("tail", "i0", 4),
    lambda s: s.unroll("tail", "i0", 3),
    lambda s: s.parallel("tail", "i0", 2),
)


@pytest.mark.spread(3)
@pytest.mark.parametrize("step", STEPS, ids=["tile", "unroll", "parallel"])
def test_a_step_changes_loops_and_code_and_keeps_the_bits(step):
    model, x = _Model().eval(), torch.randn(2, 5, 48)
    s = _fused(model, x)
    (before,) = s.kernels("tail")
    assert before.loops == {"i0": 10, "j0": 48} and before.name == "tail_0"
    step(s)
    (after,) = s.kernels("tail")
    assert after.listing != before.listing and after.assembly != before.assembly and after.llvm != before.llvm
    assert _same_bits(s, model, x)
    s.verify()
    s.undo()
    (again,) = s.kernels("tail")
    assert (again.listing, again.llvm) == (before.listing, before.llvm) and len(s.log) == 1


def test_vectors_along_the_points_or_along_the_row():
    model, x = _Model().eval(), torch.randn(2, 8, 48)
    s = _fused(model, x)
    s.vectorize("tail", "i0", 4)
    listing = str(s.kernels("tail"))
    assert "for i0 < 16" in listing and ", in vectors of 4" in listing and "# j0 < 48 one by one" in listing
    s.verify()
    s.undo().vectorize(s.kernels("tail")[0], "j0", 4).unroll("tail", "j0", 2)
    assert "# j0 < 48, in vectors of 4, 2 at once" in str(s.kernels("tail"))
    s.verify()


def test_the_steps_run_in_what_is_built():
    model, x = _Model().eval(), torch.randn(2, 8, 48)
    s = _fused(model, x)
    s.tile("tail", "i0", 4).unroll("tail", "i0", 2)
    built = s.build()
    with torch.no_grad():
        built(x)
    held = built.layers[0].forward._held.entries[0]
    ((compiled, _),) = held.calls["tail_0"]._programs.values()
    (unit,) = [row.entry for row in compiled.stats().rows]
    assert s.kernels("tail")[0].llvm in unit.lowered.report.texts.values()


def test_a_step_of_a_wildcard_is_one_step_for_all_layers_and_as_text_for_24():
    x = torch.randn(2, 4, 48)
    model = _Model(2).eval()
    s = _fused(model, x)
    s["layers.*"].tile("tail", "i0", 4)
    s.parallel("tail", "i0")
    assert len(s.log) == 3 and [k.path for k in s.kernels("tail")] == ["layers.0", "layers.1"]
    assert all("parallel for i0 < 8 in tiles of 4" in k.listing for k in s.kernels())
    assert "tile of tail_0: i0 4" in str(s)
    deep = _Model(24).eval()
    again = smelt.apply(s.to_json(), deep, x)
    assert len(again.kernels("tail_0")) == 24 and again.to_json() == s.to_json()
    assert {k.llvm for k in again.kernels()} == {k.llvm for k in s.kernels()}
    assert _same_bits(again, deep, x)


def test_random_steps_give_the_answers_of_the_kernel_without():
    x = torch.randn(3, 7, 48)
    model = _Model().eval()
    taken = 0
    generator = torch.Generator().manual_seed(3)

    def draw(*choices):
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    for _ in range(4):
        s = _fused(model, x)
        for _ in range(4):
            name, loop = draw("tile", "vectorize", "unroll", "parallel"), draw("i0", "j0")
            log = s.log
            try:
                getattr(s, name)("tail", loop, draw(2, 3, 4, 8, 16))
                taken += 1
            except smelt.ScheduleError as error:
                assert error.code == "S0614" and error.why and error.fix and s.log == log
        with torch.no_grad():
            torch.testing.assert_close(s.build()(x), model(x), rtol=2e-6, atol=2e-6)
    assert taken > 4


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (lambda s: s.tile("tial", "i0", 4), "did you mean 'tail_0'"),
        (lambda s: s.tile("tail_7", "i0", 4), "there is no kernel"),
        (lambda s: s.tile("tail", "i7", 4), "the kernel has i0 < 16, j0 < 48"),
        (lambda s: s.tile("tail", "j0", 22), "no multiple"),
        (lambda s: s.parallel("tail", "j0"), "combined for each point"),
        (lambda s: s.unroll("tail", "i0", 17), "it has 16 iterations"),
        (lambda s: s.vectorize("tail", "j0", 3), "no vectors of 3"),
    ],
)
def test_what_cannot_be_taken_changes_nothing(step, told):
    s = _fused(_Model().eval(), torch.randn(2, 8, 48))
    before = str(s), str(s.kernels()), s.to_json()
    with pytest.raises(smelt.ScheduleError) as caught:
        step(s)
    assert caught.value.code == "S0614" and told in str(caught.value) and "test_kernel_steps.py" in str(caught.value)
    assert (str(s), str(s.kernels()), s.to_json()) == before


def test_without_example_inputs_there_are_no_sizes_to_check():
    s = smelt.schedule(_Model().eval())
    s["layers.0"].fuse(s.find(lambda x: F.gelu(x))[0], name="act")
    with pytest.raises(smelt.ScheduleError, match="not known yet"):
        s.tile("act", "i0", 4)


def test_a_match_is_no_kernel():
    s = _fused(_Model().eval(), torch.randn(2, 8, 48))
    with pytest.raises(smelt.ScheduleError, match="not to a Match"):
        s.unroll(s.find(lambda x, w, b: F.linear(x, w, b))[0], "i0")


class _Turns(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, x, n):
        for _ in range(int(n)):
            x = torch.tanh(self.cell(x))
        return x


def test_a_loop_of_the_program_is_unrolled_by_capture_or_no_graph_of_a_step():
    x = torch.randn(2, 4)
    s = smelt.schedule(_Turns(), (x, 3))
    assert len(s.find(nn.Linear)) == 3  # a node for each turn
    s = smelt.schedule(_Turns(), (x, torch.tensor(3)))
    (match,) = s.find(nn.Linear)
    for step in (lambda: s.unroll(match, "i0", 2), lambda: s.outline(match)):
        with pytest.raises(smelt.ScheduleError, match=r"where their number depends on data|its path depends on data"):
            step()
    assert len(s.log) == 0 and torch.equal(s.build()(x, torch.tensor(2)), s.module(x, torch.tensor(2)))


def test_several_kernels_of_a_region_are_named_one_by_one():
    class Total(nn.Module):
        def forward(self, x):
            return (x * 2.0).sum() + 1.0

    model, x = Total(), torch.randn(400, 500)
    s = smelt.schedule(model, x)
    s.fuse(s.find(lambda x: (x * 2.0).sum() + 1.0)[0], name="total")
    names = [k.name for k in s.kernels("total")]
    assert names == ["total_0.0", "total_0.1"]
    with pytest.raises(smelt.ScheduleError, match="several kernels"):
        s.unroll("total", "i0", 2)
    s.unroll("total_0.0", "j0", 4).parallel("total.0", "i0", 2)
    assert [k.own == () for k in s.kernels("total")] == [False, True]
    assert s.kernels("total.0")[0].name == "total_0.0"
    with torch.no_grad():
        torch.testing.assert_close(s.build()(x), model(x))


def test_a_call_of_other_sizes_takes_the_steps_where_they_fit():
    model = _Model().eval()
    s = _fused(model, torch.randn(2, 8, 48))
    s.unroll("tail", "i0", 16)
    built = s.build()
    with torch.no_grad():
        for shape in ((4, 8, 48), (2, 8, 48)):
            x = torch.randn(shape)
            torch.testing.assert_close(built(x), model(x))
        x = torch.randn(1, 3, 48)
        with pytest.warns(smelt.SmeltWarning, match="without the steps on its loops: .* cannot be unrolled 16 times"):
            torch.testing.assert_close(built(x), model(x))


def test_gradients_are_those_of_the_model():
    model, x = _Model(), torch.randn(2, 8, 48)
    s = _fused(model, x)
    s.tile("tail", "i0", 4)
    built, y = s.build(), x.clone().requires_grad_()
    built(y).square().sum().backward()
    z = x.clone().requires_grad_()
    model(z).square().sum().backward()
    assert torch.equal(y.grad, z.grad)


def test_a_whole_that_is_compiled_around_fuses_anew():
    model, x = _Model().eval(), torch.randn(2, 8, 48)
    s = _fused(model, x)
    s.tile("tail", "i0", 4).compile()
    with torch.no_grad():
        torch.testing.assert_close(s.build()(x), model(x))


@pytest.mark.parametrize("is_fused", [True, False])
def test_what_is_compiled_has_no_kernels_to_shape(is_fused):
    model, x = _Model(2).eval(), torch.randn(2, 8, 48)
    s = _fused(model, x) if is_fused else smelt.schedule(model, x)
    s["layers.0"].compile()
    if is_fused:
        assert {kernel.path for kernel in s.kernels("tail")} == {"layers.1"}
    log = s.log
    for ask in (
        lambda: s["layers.0"].kernels(),
        lambda: s["layers.0"].tile("tail", "i0", 4),
        lambda: s["layers.*"].compile().kernels() if not is_fused else s["layers.0"].unroll("tail", "i0"),
    ):
        with pytest.raises(smelt.ScheduleError, match="is compiled: what is in it is fused anew"):
            ask()
    assert s.log[: len(log)] == log


def test_tune_searches_tiles(monkeypatch):
    model, x = _Model().eval(), torch.randn(2, 16, 48)
    tried = []

    def shape(s):
        layers = s["layers.*"]
        layers.fuse(layers.find(_tail), name="tail")
        size = s.knob("tile", [2, 16, 8])
        tried.append(size)
        s.tile("tail", "i0", size)
        if s.knob("rows", [1, 3]) > 1:
            s.unroll("tail", "i0", 3)  # more than a tile of 2 has: that candidate is passed over

    tuned = smelt.tune(shape, model, x, budget=60.0, backward=False, cache=False, repeats=1)
    assert set(tried) >= {2, 8, 16} and tuned.knobs["tile"] in (2, 8, 16)
    assert (tuned.knobs["tile"], tuned.knobs["rows"]) != (2, 3)


def test_verify_each_checks_steps_on_loops():
    model, x = _Model().eval(), torch.randn(2, 8, 48)
    s = smelt.schedule(model, x, verify_each=True)
    s["layers.0"].fuse(s["layers.0"].find(_tail)[0], name="tail")
    s.tile("tail", "i0", 4).unroll("tail", "j0", 2)
    assert len(s.log) == 3


def test_loops_are_an_option_that_is_checked():
    with pytest.raises(smelt.SmeltError, match="loops"):
        smelt.compile(lambda x: x, options={"loops": ["tile i0 4"]})
