"""Steps on modules: what each promises, what it refuses, and that a search still finds what is there."""

import copy
import inspect
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt import ScheduleError

pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(size), nn.Linear(size, 32), nn.Linear(32, size)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, *, scale=1.0, debug=None, use_reentrant=None):
        assert debug in (None, "no")
        return x + self.drop(self.fc2(F.gelu(self.fc1(self.norm(x))))) * scale


class Net(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(16, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, scale=2.0):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(use_reentrant=True, scale=scale, debug="no", x=x)
        return {"logits": self.head(x), "hidden": (x,)}


def _ids():
    return torch.randint(0, 10, (3, 5), generator=torch.Generator().manual_seed(0))


def _x(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _relative(a, b):
    return ((a - b).square().mean().sqrt() / a.square().mean().sqrt()).item()


def _same_run(a, b, *args, seed=3, **kwargs):
    """Both modules with the same random numbers: outputs, gradients and states bit for bit."""
    results = []
    for module in (a, b):
        module.zero_grad()
        torch.manual_seed(seed)
        found = module(*args, **kwargs)
        output = found["logits"] if isinstance(found, dict) else found
        output.square().sum().backward()
        results.append((output, [p.grad for p in module.parameters()], dict(module.state_dict()), torch.rand(1)))
    for left, right in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(left, right)
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][3], results[1][3])
    assert results[0][2].keys() == results[1][2].keys()
    assert all(torch.equal(value, results[1][2][name]) for name, value in results[0][2].items())


# Every step


EVERY = [
    ("blocks.0", "checkpoint", ()),
    ("blocks.0.fc1", "decompose", ()),
    ("blocks.0", "fork_rng", ()),
    ("blocks.0", "print_at", ()),
    ("blocks.0.fc1", "annotate", ("weight", "kind", "wide")),
    ("blocks.0", "precision", (torch.bfloat16,)),
    ("blocks.0", "quantize", ()),
    ("blocks.0", "layout", ("channels_last",)),
]


@pytest.mark.parametrize(("path", "step", "arguments"), EVERY)
def test_keys_classes_modes_hooks_attributes_and_the_model_stay(path, step, arguments):
    model = Net().eval()
    model.blocks[1].train()
    model.blocks[0].config = {"a": 1}
    called = []
    model.blocks[0].register_forward_hook(lambda module, args, output: called.append(type(module)))
    state = copy.deepcopy(model.state_dict())
    text = str(model)
    s = smelt.schedule(model, _ids())
    getattr(s[path], step)(*arguments)
    assert str(s.log[0]).startswith(f"s['{path}'].{step}(")
    assert "#" in str(s[path])
    built = s.build()
    assert type(built) is Net and list(built.state_dict()) == list(state)
    assert built.head.weight is built.embed.weight
    assert built.blocks[0].config == {"a": 1} and built.blocks[0].config is not model.blocks[0].config
    assert not built.training and built.blocks[1].training and not built.blocks[0].training
    assert all(isinstance(b, type(a)) for a, b in zip(model.modules(), built.modules(), strict=True))
    called.clear()
    built.eval()(_ids())
    assert called == [Block]
    built.load_state_dict(state)
    assert inspect.signature(built.blocks[0].forward) == inspect.signature(model.blocks[0].forward)
    assert str(model) == text and "forward" not in model.blocks[0].__dict__
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert s.undo().build().blocks[0].__dict__.keys() == model.blocks[0].__dict__.keys()


@pytest.mark.parametrize(("path", "step", "arguments"), EVERY)
def test_copies_and_pickles_do_the_same_and_share_nothing(path, step, arguments, capsys):
    s = smelt.schedule(Net().eval(), _ids())
    getattr(s[path], step)(*arguments)
    built = s.build()
    with torch.no_grad():
        expected = built(_ids())["logits"]
        for other in (copy.deepcopy(built), pickle.loads(pickle.dumps(built))):
            assert torch.equal(other(_ids())["logits"], expected)
            for name, parameter in other.named_parameters():
                assert parameter is not built.get_parameter(name)
                parameter.zero_()
            assert torch.equal(built(_ids())["logits"], expected)
            assert not torch.equal(other(_ids())["logits"], expected)


@pytest.mark.parametrize(("path", "step", "arguments"), EVERY)
def test_train_and_eval_change_dropout_after_a_step(path, step, arguments, capsys):
    s = smelt.schedule(Net().eval(), _ids())
    getattr(s[path], step)(*arguments)
    built = s.build()
    with torch.no_grad():
        still = built(_ids())["logits"]
        assert torch.equal(built(_ids())["logits"], still)
        assert not torch.equal(built.train()(_ids())["logits"], still)
        assert torch.equal(built.eval()(_ids())["logits"], still)


@pytest.mark.spread(3)
@pytest.mark.parametrize(("path", "step", "arguments"), EVERY)
def test_every_step_is_verified_in_both_modes_with_gradients(path, step, arguments):
    s = smelt.schedule(Net(), _ids(), verify_each=True)
    getattr(s[path], step)(*arguments)
    assert s.verify(ids=_ids()[:2], scale=0.5).gradients


@pytest.mark.spread(3)
@pytest.mark.parametrize(("path", "step", "arguments"), EVERY)
def test_find_after_every_step(path, step, arguments):
    s = smelt.schedule(Net().eval(), _ids())
    before = len(s["blocks.1"].find(lambda x, y: F.gelu(x) * y)), len(s.find(nn.Linear))
    getattr(s[path], step)(*arguments)
    assert (len(s["blocks.1"].find(lambda x, y: F.gelu(x) * y)), len(s.find(nn.Linear))) == before
    assert len(s["blocks.1"].find(lambda x: F.gelu(x))) == 1


def test_wildcards_are_one_step():
    s = smelt.schedule(Net(3), _ids())
    s["blocks.*"].checkpoint()
    assert [step.path for step in s.log] == ["blocks.*"]
    _same_run(Net(3), s.build(), _ids())


def test_what_has_no_forward_is_refused():
    s = smelt.schedule(Net())
    for step, arguments in (("checkpoint", ()), ("fork_rng", ()), ("print_at", ()), ("precision", (torch.bfloat16,))):
        with pytest.raises(ScheduleError, match="blocks is never called") as caught:
            getattr(s["blocks"], step)(*arguments)
        assert caught.value.code == "S0607"
    assert s.log == ()


def test_a_second_time_is_refused():
    s = smelt.schedule(Net(), _ids())
    for path, step, arguments in EVERY:
        if step not in ("annotate", "quantize", "print_at"):
            getattr(s[path], step)(*arguments)
            steps = len(s.log)
            with pytest.raises(ScheduleError, match=f"has had {step} already"):
                getattr(s[path], step)(*arguments)
            assert len(s.log) == steps
    s.build()(_ids())


# checkpoint


def test_checkpoint_keeps_output_weight_and_input_gradients():
    for path in ("blocks.0", "blocks.*", ""):
        s = smelt.schedule(Net())
        (s[path] if path else s).checkpoint()
        _same_run(Net(), s.build(), _ids())
        assert s.verify(_ids(), inputs=[{"scale": 0.3, "ids": _ids()}]).is_bitwise

    block = Block()
    s = smelt.schedule(block)
    s.checkpoint()
    grads = []
    for module in (block, s.build()):
        x = _x(3, 16).requires_grad_()
        torch.manual_seed(0)
        module(x).sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_checkpoint_keeps_less():
    class Wide(nn.Module):
        def forward(self, x):
            for _ in range(5):
                x = torch.sin(x)
            return x

    kept = []
    s = smelt.schedule(Wide())
    s.checkpoint()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        s.build()(_x(4).requires_grad_())
        checkpointed = len(kept)
        Wide()(_x(4).requires_grad_())
    assert checkpointed == 0 and len(kept) == 5


def test_checkpoint_counts_a_batch_once():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
            self.register_buffer("seen", torch.zeros(70000))

        def forward(self, x):
            self.seen += 1
            return torch.tanh(self.norm(self.fc(x)))

    s = smelt.schedule(Normed())
    s.checkpoint()
    model, built = Normed(), s.build()
    for step in range(2):
        _same_run(model, built, _x(8, 4, seed=step))
    assert built.norm.num_batches_tracked == 2 and built.seen[0] == 2


def test_checkpoint_in_checkpoint_and_without_gradients():
    s = smelt.schedule(Net())
    s["blocks.*"].checkpoint()
    s.checkpoint()
    _same_run(Net(), s.build(), _ids())
    with torch.no_grad():
        assert torch.equal(s.build().eval()(_ids())["logits"], Net().eval()(_ids())["logits"])


def test_checkpoint_of_layers_that_fill_a_cache():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=10, n_positions=8, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    s = smelt.schedule(model)
    s["transformer.h.*"].checkpoint()
    assert s.verify(input_ids=_ids(), use_cache=True).is_bitwise
    built = s.build().eval()
    with torch.no_grad():
        given = {"max_new_tokens": 3, "do_sample": False, "attention_mask": torch.ones_like(_ids())}
        assert torch.equal(built.generate(_ids(), **given), model.eval().generate(_ids(), **given))


def test_checkpoint_of_what_is_written_to_a_list():
    class Writes(nn.Module):
        def forward(self, x, kept):
            kept.append(torch.sin(x))
            return sum(kept)

    s = smelt.schedule(Writes())
    s.checkpoint()
    x, y, kept = _x(4).requires_grad_(), _x(4, seed=2).requires_grad_(), []
    built = s.build()
    (built(x, kept) + built(y, kept=kept)).sum().backward()
    assert len(kept) == 2
    assert torch.equal(x.grad, 2 * torch.cos(x.detach())) and torch.equal(y.grad, torch.cos(y.detach()))


def test_decompose_of_what_is_no_linear_layer():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    s = smelt.schedule(nn.Sequential(Own(4, 4), nn.ReLU()))
    for path in ("0", "1"):
        with pytest.raises(ScheduleError, match="cannot be decomposed"):
            s[path].decompose()


def test_decompose_keeps_the_type_under_autocast():
    s = smelt.schedule(nn.Sequential(nn.Linear(4, 4)))
    s["0"].decompose()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert s.build()(_x(2, 4)).dtype == torch.bfloat16


# annotate


def test_annotations_stand_on_what_is_built_and_not_on_the_model():
    model = Net()
    s = smelt.schedule(model)
    s["blocks.*.fc1"].annotate("weight", "no_decay", True)
    s.annotate("blocks.0.fc1.weight", "rank", 3)
    s["head"].annotate("weight", "tied", "yes")
    built = s.build()
    first = built.blocks[0].fc1.weight
    assert (first.no_decay, first.rank, built.blocks[1].fc1.weight.no_decay) == (True, 3, True)
    assert built.embed.weight.tied == "yes"
    assert not hasattr(model.blocks[0].fc1.weight, "no_decay")
    assert s.annotations == {
        "blocks.0.fc1.weight": {"no_decay": True, "rank": 3},
        "blocks.1.fc1.weight": {"no_decay": True},
        "head.weight": {"tied": "yes"},
    }
    assert copy.deepcopy(built).blocks[0].fc1.weight.rank == 3
    assert built.double().blocks[0].fc1.weight.rank == 3
    shared = s.build(share=True)
    assert shared.blocks[0].fc1.weight is model.blocks[0].fc1.weight
    assert not hasattr(model.blocks[0].fc1.weight, "no_decay")
    assert "rank" not in s.undo().undo().annotations["blocks.0.fc1.weight"]


@pytest.mark.parametrize(
    ("param", "key", "told"),
    [
        ("weights", "a", "fc1 has no parameter 'weights'"),
        ("x.weight", "a", "has no parameter 'x.weight'"),
        ("weight", "grad", "cannot be annotated with 'grad'"),
        ("weight", "data", "cannot be annotated with 'data'"),
        ("weight", "not a name", "cannot be annotated with 'not a name'"),
        ("weight", 3, "cannot be annotated with 3"),
    ],
)
def test_annotations_that_cannot_be(param, key, told):
    s = smelt.schedule(Net())
    with pytest.raises(ScheduleError, match=told):
        s["blocks.0.fc1"].annotate(param, key, 1)
    assert s.log == () and s.annotations == {}


# fork_rng


class Drops(nn.Module):
    def __init__(self, draws=1):
        super().__init__()
        self.first, self.second, self.draws = nn.Dropout(0.5), nn.Dropout(0.5), draws

    def forward(self, x):
        for _ in range(self.draws):
            a = self.first(x)
        return a, self.second(x)


def test_fork_rng_separates_what_is_drawn_inside():
    results = []
    for p in (0.5, 0.0):
        model = nn.Sequential(nn.Dropout(p), nn.Dropout(0.5))
        s = smelt.schedule(model)
        s["0"].fork_rng()
        built = s.build()
        torch.manual_seed(0)
        first = built[0](torch.ones(64))
        results.append((first, built[1](torch.ones(64)), torch.rand(1)))
    # An inner module that draws nothing draws no seed either.
    torch.manual_seed(0)
    assert torch.equal(results[1][1], nn.Dropout(0.5)(torch.ones(64)))
    torch.manual_seed(0)
    torch.randint(1 << 62, ())
    assert torch.equal(results[0][1], nn.Dropout(0.5)(torch.ones(64)))
    assert 0 < (results[0][0] == 0).sum() < 64


def test_fork_rng_makes_the_number_of_draws_inside_irrelevant():
    class Inner(nn.Module):
        def __init__(self, draws):
            super().__init__()
            self.draws = draws

        def forward(self, x):
            return x + torch.rand(self.draws).sum()

    after = []
    for draws in (1, 100):
        s = smelt.schedule(nn.Sequential(Inner(draws), nn.Dropout(0.5)))
        s["0"].fork_rng()
        torch.manual_seed(0)
        after.append(s.build()[1](s.build()[0](torch.ones(64)) * 0 + 1))
        torch.manual_seed(0)
        s.build()(torch.ones(64))
        after.append(torch.rand(1))
    assert torch.equal(after[0], after[2]) and torch.equal(after[1], after[3])


def test_fork_rng_differs_between_calls_modules_and_offsets():
    def built(offset):
        s = smelt.schedule(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)))
        s["*"].fork_rng(offset)
        return s.build()

    torch.manual_seed(0)
    model = built(0)
    calls = [model[0](torch.ones(64)), model[1](torch.ones(64)), model[0](torch.ones(64))]
    torch.manual_seed(0)
    calls.append(built(1)[0](torch.ones(64)))
    assert len({tuple(call.tolist()) for call in calls}) == 4
    torch.manual_seed(0)
    assert torch.equal(built(0)[0](torch.ones(64)), calls[0])


def test_fork_rng_in_a_checkpoint_and_in_verify():
    s = smelt.schedule(Net(), _ids(), verify_each=True)
    s["blocks.0"].fork_rng()
    s["blocks.0"].checkpoint()
    s["blocks.1"].checkpoint()
    assert s.verify().is_bitwise
    reference = smelt.schedule(Net())
    reference["blocks.0"].fork_rng()
    _same_run(reference.build(), s.build(), _ids())
    with pytest.raises(smelt.VerifyError):
        s["blocks.1.drop"].replace(nn.Dropout(0.5))


def test_fork_rng_of_what_a_step_put_there_shows_as_other_random_numbers():
    s = smelt.schedule(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)), _x(8, 4))
    s["0"].replace(nn.Sequential(nn.Dropout(0.5)))
    s["0.0"].fork_rng()
    with pytest.raises(smelt.VerifyError) as caught:
        s.verify()
    assert caught.value.step is s.log[1]


def test_fork_rng_leaves_the_state_right_when_the_module_raises():
    class Fails(nn.Module):
        def forward(self, x):
            torch.rand(7)
            raise KeyError(x)

    s = smelt.schedule(nn.Sequential(Fails()))
    s["0"].fork_rng()
    built = s.build()
    torch.manual_seed(0)
    with pytest.raises(KeyError):
        built(1)
    after = torch.rand(1)
    torch.manual_seed(0)
    torch.randint(1 << 62, ())
    assert torch.equal(after, torch.rand(1))


# print_at


def test_print_at_shows_what_a_module_gives(capsys):
    s = smelt.schedule(Net().eval())
    s["blocks.1"].print_at()
    s["head"].print_at("input")
    s.print_at(values=True)
    s.verify(_ids())
    assert capsys.readouterr().out == ""
    built = s.build()
    x = built(_ids())["hidden"][0]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"blocks.1: output float32[3, 5, 16] min {x.min().item():.4g} mean ")
    assert lines[1].startswith("head: input[0] float32[3, 5, 16] min ")
    assert lines[2].startswith("the whole: output['logits'] float32[3, 5, 10] min") and "tensor([[[" in lines[2]


def test_print_at_of_other_values(capsys):
    class Gives(nn.Module):
        def forward(self, x, flag):
            return x.sum(), torch.empty(0, 3), [torch.tensor([1, 2]), None, flag], torch.tensor([True])

    s = smelt.schedule(Gives())
    s.print_at()
    s.build()(_x(2), flag="yes")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" min")[0] for line in lines] == [
        "the whole: output[0] float32[]", "the whole: output[1] float32[0, 3]", "the whole: output[2][0] int64[2]",
        "the whole: output[2][1] None", "the whole: output[2][2] 'yes'", "the whole: output[3] bool[1]",
    ]  # fmt: skip
    with pytest.raises(ScheduleError, match="no 'weights' to print"):
        s.print_at("weights")


# layout


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1, bias=False)

    def forward(self, x, *, flat=False):
        self.strides = []
        for layer in (self.conv, self.norm, torch.relu, self.last):
            x = layer(x)
            self.strides.append(x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous())
        return x.view(x.shape[0], -1) if flat else x


def test_layout_runs_channels_last_inside_and_plain_outside():
    model, x = Conv().eval(), _x(2, 3, 8, 8)
    s = smelt.schedule(model)
    s.layout("channels_last")
    built = s.build()
    with torch.no_grad():
        found, expected = built(x), model(x)
    assert built.strides == [True] * 4 and model.strides == [False] * 4
    assert found.stride() == expected.stride() and torch.allclose(found, expected, atol=1e-5)
    assert built.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not built.conv.weight.is_contiguous() and model.conv.weight.is_contiguous()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in built.state_dict().items())
    assert s.build(share=True).conv.weight is model.conv.weight and model.conv.weight.is_contiguous()
    assert s.verify(x).gradients


def test_layout_of_a_part_keeps_what_comes_after():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Conv()

        def forward(self, x):
            return self.body(x).view(x.shape[0], -1)

    s = smelt.schedule(Net(), _x(2, 3, 8, 8))
    s["body"].layout("channels_last")
    assert s.verify().gradients


def test_layout_that_does_not_run_is_refused():
    s = smelt.schedule(_Flat(), _x(2, 3, 8, 8))
    with pytest.raises(ScheduleError, match=r"layout\('channels_last'\) of the whole makes the model raise Runtime"):
        s.layout("channels_last")
    assert s.log == ()
    with pytest.raises(ScheduleError, match="'nchw' is no layout"):
        s.layout("nchw")


class _Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = Conv()

    def forward(self, x):
        return self.conv(x, flat=True)


def test_layout_of_volumes():
    torch.manual_seed(0)
    s = smelt.schedule(nn.Sequential(nn.Conv3d(2, 4, 3)), _x(1, 2, 5, 5, 5))
    s.layout("channels_last_3d")
    assert s.verify().gradients
    assert s.build()[0].weight.is_contiguous(memory_format=torch.channels_last_3d)


# precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_precision_multiplies_narrow_and_keeps_islands(dtype):
    seen = {}

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc, self.norm, self.out = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, x):
            h = self.fc(x)
            n = self.norm(h)
            p = torch.softmax(h @ h.transpose(-1, -2), -1)
            q = (h @ h.transpose(-1, -2)).softmax(dim=-1)
            loss = F.mse_loss(h, torch.zeros_like(h))
            rms = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
            seen.update(h=h.dtype, n=n.dtype, p=p.dtype, q=q.dtype, loss=loss.dtype, rms=rms.dtype, pn=(p @ n).dtype)
            return {"y": self.out(p @ n) + q @ rms, "h": (h,), "loss": loss, "mask": h > 0}

    model, x = Watched(), _x(2, 5, 16)
    s = smelt.schedule(model, x)
    s.precision(dtype)
    built = s.build()
    found, expected = built(x), model(x)
    seen.clear()
    built(x)
    assert {name for name, type in seen.items() if type == dtype} == {"h", "pn"}
    assert {type for name, type in seen.items() if name not in ("h", "pn")} == {torch.float32}
    for name in ("y", "loss"):
        assert found[name].dtype == torch.float32
    assert found["h"][0].dtype == torch.float32 and found["mask"].dtype == torch.bool
    error = _relative(expected["y"], found["y"])
    assert 0 < error < {torch.bfloat16: 0.02, torch.float16: 0.003}[dtype]
    assert all(parameter.dtype == torch.float32 for parameter in built.parameters())
    found["y"].sum().backward()
    assert built.fc.weight.grad.dtype == torch.float32
    # What is told is what was measured.
    told = float(str(s).splitlines()[0].split("error ")[1])
    measured = max(_relative(expected[k], found[k]) for k in ("y", "loss"))
    assert told == pytest.approx(max(measured, _relative(expected["h"][0], found["h"][0])), rel=0.1)


def test_precision_of_a_part_with_a_kept_module():
    s = smelt.schedule(Net(), _ids())
    s["blocks.*"].precision(torch.bfloat16, keep=["fc2"])
    built, seen = s.build(), {}
    for name in ("fc1", "fc2"):
        module = built.blocks[0].get_submodule(name)
        module.register_forward_hook(lambda module, args, output, name=name: seen.update({name: output.dtype}))
    built(_ids())
    assert seen == {"fc1": torch.bfloat16, "fc2": torch.float32}
    with pytest.raises(ScheduleError, match="no module 'fc3' to keep"):
        s.undo()["blocks.*"].precision(torch.bfloat16, keep=["fc3"])


def test_precision_beyond_what_is_allowed_is_refused():
    s = smelt.schedule(Net().eval(), _ids())
    with pytest.raises(ScheduleError, match="makes an error of") as caught:
        s.precision(torch.bfloat16, max_error=1e-5)
    assert caught.value.code == "S0623" and s.log == ()
    s.precision(torch.bfloat16, max_error=0.04)
    assert s.verify().error < 0.04
    with pytest.raises(ScheduleError, match="cannot be in"):
        smelt.schedule(Net()).precision(torch.float64)


def test_a_wrong_step_is_found_beside_a_lossy_one():
    s = smelt.schedule(Net().eval(), _ids())
    s["blocks.*"].precision(torch.bfloat16)
    s["blocks.1.fc2"].replace(nn.Identity())
    with pytest.raises(smelt.VerifyError) as caught:
        s.verify()
    assert caught.value.step is s.log[1]


def test_precision_without_examples_says_that_nothing_was_measured():
    s = smelt.schedule(Net())
    s.precision(torch.bfloat16)
    assert "bfloat16, error not measured" in str(s)


def test_lossy_steps_on_a_whole_transformer_are_verified_with_gradients():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=10)
    for step, arguments in (("precision", (torch.bfloat16,)), ("precision", (torch.float16,)), ("quantize", ())):
        s = smelt.schedule(BertModel(config).eval())
        getattr(s, step)(*arguments)
        found = s.verify(_ids())
        assert found.gradients and 0 < found.error < 0.05
        s["embeddings.LayerNorm"].replace(nn.Identity())
        with pytest.raises(smelt.VerifyError) as caught:
            s.verify(_ids())
        assert caught.value.step is s.log[1]


# quantize


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4, 32), (32,), (2, 3, 32), (0, 32), (2, 0, 32)])
def test_quantized_layers_are_near(bias, shape):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48, bias=bias)).requires_grad_(False)
    s = smelt.schedule(model)
    s.quantize()
    built, x = s.build(), _x(*shape)
    found, expected = built(x), model(x)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if x.numel():
        assert 0 < _relative(expected, found) < 0.02
    assert isinstance(built[0], nn.Linear) and built[0].weight_bytes.dtype == torch.int8
    assert _relative(model[0].weight, built[0].weight) < 0.01
    assert len(list(built.parameters())) == bias


@pytest.mark.parametrize("make", [lambda x: x * 0, lambda x: x * 0 + 5, lambda x: x.abs() + 3, lambda x: x * 1e30])
def test_quantized_layers_on_rows_of_any_range(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 8)).requires_grad_(False)
    s = smelt.schedule(model)
    s.quantize()
    x = make(_x(4, 32))
    scale = model(x).abs().max()
    assert (s.build()(x) - model(x)).abs().max() <= 0.02 * scale


def test_quantized_rows_do_not_depend_on_each_other():
    torch.manual_seed(0)
    s = smelt.schedule(nn.Sequential(nn.Linear(32, 8)))
    s.quantize()
    built, x = s.build().requires_grad_(False), _x(4, 32)
    alone = built(x[:1])
    x[1, 3], x[2, 3], x[3] = float("nan"), float("inf"), 1e20
    found = built(x)
    assert torch.equal(found[:1], alone)
    assert found[1].isnan().all() and not found[2].isfinite().any() and found[3].isfinite().all()


def test_quantized_checkpoints_are_those_of_the_float_layer():
    model = Net().eval()
    state = copy.deepcopy(model.state_dict())
    s = smelt.schedule(model, _ids())
    s.quantize(max_error=0.2)
    built = s.build()
    assert list(built.state_dict()) == list(state)
    assert all(v.dtype == state[k].dtype and v.shape == state[k].shape for k, v in built.state_dict().items())
    again = {name: value.clone() for name, value in built.state_dict().items()}
    built.load_state_dict(again)
    assert all(torch.equal(value, again[name]) for name, value in built.state_dict().items())
    expected = built(_ids())["logits"]
    with torch.no_grad():
        for value in again.values():
            value.mul_(value.dim())
    built.load_state_dict(again)
    assert not torch.equal(built(_ids())["logits"], expected)
    built.load_state_dict(state)
    assert torch.equal(built(_ids())["logits"], expected)
    for broken in ({"blocks.0.fc1.weight": torch.zeros(2, 2)}, {}):
        partly = {name: value for name, value in state.items() if name != "blocks.0.fc1.weight"} | broken
        with pytest.raises(RuntimeError, match=r"blocks\.0\.fc1\.weight"):
            built.load_state_dict(partly)


def test_quantize_leaves_tied_and_unusual_layers():
    s = smelt.schedule(Net().eval(), _ids())
    s.quantize()
    built = s.build()
    assert type(built.head) is nn.Linear and built.head.weight is built.embed.weight
    assert "int8: 4 of 5 linear layers" in str(s)
    assert "not int8: its weight is tied to another module's" in str(s["head"])
    with pytest.raises(ScheduleError, match="head has no linear layer to quantize") as caught:
        s["head"].quantize()
    assert "tied" in caught.value.why
    with pytest.raises(ScheduleError, match="no linear layer"):
        smelt.schedule(nn.ReLU()).quantize()
    with pytest.raises(ScheduleError, match="cannot be in"):
        smelt.schedule(Net()).quantize(torch.int16)
    attention = smelt.schedule(nn.MultiheadAttention(8, 2))
    with pytest.raises(ScheduleError, match="no linear layer"):
        attention.quantize()


def test_quantize_beyond_what_is_allowed_is_refused():
    s = smelt.schedule(Net().eval(), _ids())
    with pytest.raises(ScheduleError, match=r"quantize\(\) of the whole makes an error of") as caught:
        s.quantize(max_error=1e-6)
    assert caught.value.code == "S0623" and s.log == ()
    assert type(s["blocks.0.fc1"].module) is nn.Linear


def test_gradients_flow_through_quantized_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4))
    s = smelt.schedule(model, _x(3, 16))
    s["1"].quantize()
    grads = []
    for module in (model, s.build()):
        module(_x(3, 16)).sum().backward()
        grads.append(module[0].weight.grad)
    assert 0 < _relative(*grads) < 0.02
    assert s.verify().gradients


def test_quantized_layers_under_autocast_and_in_other_types():
    torch.manual_seed(0)
    s = smelt.schedule(nn.Sequential(nn.Linear(16, 4)).requires_grad_(False))
    s.quantize()
    built, x = s.build(), _x(3, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert built(x).dtype == torch.bfloat16
    assert built(x.bfloat16()).dtype == torch.bfloat16
    assert _relative(built(x), built.to(torch.float64)(x.double())) < 1e-3


def test_quantize_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s = smelt.schedule(nn.Sequential(nn.Linear(16, 4)), _x(2, 16))
        s.quantize()
        s.build()(_x(2, 16))


# Together


def test_tied_weights_stay_one_and_pretrained_ones_stay():
    model = Net()
    s = smelt.schedule(model, _ids())
    s["blocks.0"].checkpoint()
    s["blocks.1"].precision(torch.bfloat16)
    s["blocks.1.fc1"].annotate("weight", "a", 1)
    s["head"].print_at()
    for built in (s.build(), s.build(share=True)):
        assert built.head.weight is built.embed.weight
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in built.state_dict().items())
    assert s.build(share=True).head.weight is model.head.weight
    assert s.build().head.weight is not model.head.weight


def test_all_steps_together_are_verified_and_undone(capsys):
    s = smelt.schedule(Net(), _ids(), verify_each=True)
    plain = str(s)
    s["blocks.0.fc1"].decompose()
    s["blocks.0"].checkpoint()
    s["blocks.1"].quantize()
    s["blocks.*"].precision(torch.bfloat16)
    s["blocks.1"].fork_rng()
    s["head"].print_at()
    s.layout("channels_last")
    assert s.verify().gradients and len(s.log) == 7
    for _ in range(7):
        s.undo()
    assert str(s) == plain
    _same_run(Net(), s.build(), _ids())


@pytest.mark.spread(20)
@pytest.mark.parametrize("first", ["module", "graph"])
@pytest.mark.parametrize(("path", "step", "arguments"), EVERY)
def test_steps_on_a_modules_graph_go_before_and_after(path, step, arguments, first, capsys):
    def on_graph():
        found = s["blocks.0"].find(lambda x: F.gelu(x))
        s.replace(lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)), found[0])

    def on_module():
        getattr(s[path], step)(*arguments)

    s = smelt.schedule(Net(), _ids())
    for take in (on_module, on_graph) if first == "module" else (on_graph, on_module):
        take()
    assert s.verify().gradients and len(s.log) == 2
    assert capsys.readouterr().out == ""
    if step == "checkpoint":
        kept, built = [], s.build()
        built(_ids())
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            built(_ids())
            with_checkpoint = len(kept)
            Net()(_ids())
        assert with_checkpoint < len(kept) - with_checkpoint


@pytest.mark.spread(3)
@pytest.mark.parametrize(("path", "step", "arguments"), [given for given in EVERY if given[1] != "fork_rng"])
def test_traced_and_compiled_builds_give_the_same(path, step, arguments, capsys):
    s = smelt.schedule(Net().eval(), _ids())
    getattr(s[path], step)(*arguments)
    with torch.no_grad():
        expected, most = s.build()(_ids())["logits"], 1e-3
        if step == "precision":
            # What is fused is rounded less often than eager's: both are judged by what they approximate.
            exact = Net().eval()(_ids())["logits"]
            expected, most = exact, _relative(exact, expected) * 1.01
        compiled = smelt.compile(s.build())
        for _ in range(2):
            assert _relative(expected, compiled(_ids())["logits"]) < most
        traced = smelt.trace(s.build(), _ids(), check=False)
        assert _relative(expected, traced(_ids())["logits"]) < most


def test_a_compiled_build_with_random_numbers_of_its_own_is_compiled_around_them():
    s = smelt.schedule(Net().train())
    s["blocks.0"].fork_rng()
    built, compiled = s.build(), smelt.compile(s.build())
    with torch.no_grad(), pytest.warns(smelt.SmeltWarning, match="compiled as partitions"):
        for seed in range(3):
            torch.manual_seed(seed)
            expected = built(_ids())["logits"], torch.rand(1)
            torch.manual_seed(seed)
            assert _relative(expected[0], compiled(_ids())["logits"]) < 1e-5
            assert torch.equal(torch.rand(1), expected[1])
