"""A staging run does without torch's own compiler, whose import takes longer than the run."""

from __future__ import annotations

import logging
import textwrap
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from smelt._torch.seen import light_fake, plain_fake
from smelt._torch.seen.fake import fake_tensors
from smelt._torch.seen.staged_fakes import FakeTensors, unrecognized
from tests.forked import smelt_forks

_PROGRAM = """
    import sys
    import torch
    from torch.nn import functional as F
    import smelt

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, x, weight):
            y = self.norm(self.b(F.gelu(self.a(x)))) + weight[1:] * 2 - x ** 2
            if y.sum() > 0:
                y = F.softmax(y, -1) @ y.transpose(-1, -2)
            else:
                y = torch.where(y > 0, y.exp(), y.sigmoid()).clamp(-1, 1) @ y.T
            n = 0
            while y.abs().max() > 0.5 and n < 20:
                y, n = y * 0.7 + y.mean() / 10, n + 1
            return y[torch.arange(2)], n

    model = Net()
    compiled = smelt.compile(model)
    x, weight = torch.randn(5, 4), torch.randn(6, 8)[:, ::2]
    with torch.no_grad():
        for sign in (1, -1, 3):
            expected, got = model(x * sign, weight), compiled(x * sign, weight)
            assert got[1] == expected[1] and torch.allclose(got[0], expected[0], atol=1e-5), (got, expected)
    (row,) = compiled.stats().rows
    print(row.entry.is_staged, "torch._dynamo" in sys.modules)
"""


def _run(text: str) -> str:
    return smelt_forks().run(textwrap.dedent(text)).strip()


def test_it_is_not_imported() -> None:
    assert _run(_PROGRAM) == "True False"


def test_all_is_torchs_own_where_torch_is_made_otherwise() -> None:
    other = "import smelt._torch.seen.light_fake as light\nlight._light_classes = lambda mode: None\n"
    assert _run(other + textwrap.dedent(_PROGRAM)).startswith("True")


@pytest.mark.nightly
def test_the_compiler_works_afterwards() -> None:
    later = """
        compiled = torch.compile(lambda x: torch._refs.add(x, x).sin(), backend="eager")
        assert torch.equal(compiled(x), (x + x).sin())
        print("torch._dynamo" in sys.modules)
    """
    # A build for GPUs says in between that it finds no Triton.
    first, *_, last = _run(textwrap.dedent(_PROGRAM) + textwrap.dedent(later)).splitlines()
    assert (first, last) == ("True False", "True")


def _facts(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, tensor.requires_grad


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4),
        lambda: torch.randn(3, 4).T,
        lambda: torch.randn(8, 4)[1::2, 1:3],
        lambda: torch.randn(()),
        lambda: torch.empty(0, 3, dtype=torch.int64),
        lambda: torch.randn(3, requires_grad=True),
        lambda: torch.nn.Parameter(torch.randn(2, 2)),
        lambda: torch.randn(2, 3, dtype=torch.complex64).conj(),
        lambda: torch.randn(1, 3).expand(5, 3),
        lambda: torch.view_as_real(torch.randn(2, 3, dtype=torch.complex64)),
    ],
)
def test_fakes_are_those_of_torch(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    light = light_fake._made(*_classes(monkeypatch))
    tensor = make()  # type: ignore[operator]
    theirs, ours = (
        FakeTensorMode().from_tensor(tensor, static_shapes=True),
        light.from_tensor(tensor, static_shapes=True),
    )
    assert _facts(ours) == _facts(theirs) == _facts(tensor)
    assert type(ours) is type(theirs)
    assert ours.is_leaf == theirs.is_leaf == tensor.is_leaf
    assert ours._is_view() == theirs._is_view() == tensor._is_view()


def test_views_of_one_memory_have_fakes_of_one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    light = light_fake._made(*_classes(monkeypatch))
    base = torch.randn(4, 4)
    one, other, apart = (light.from_tensor(t, static_shapes=True) for t in (base[1:], base.T, base.clone()))
    assert one.untyped_storage()._cdata == other.untyped_storage()._cdata != apart.untyped_storage()._cdata
    assert light.from_tensor(base, static_shapes=True) is light.from_tensor(base, static_shapes=True)


PLAIN = {
    "tensor": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(3, 4).T,
    "of gaps": lambda: torch.empty_strided((2, 3), (8, 2)),
    "number": lambda: torch.tensor(2.0, dtype=torch.float64),
    "integers": lambda: torch.arange(3),
    "empty": lambda: torch.empty(0, 3),
    "leaf": lambda: torch.randn(3, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.randn(2, 2)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.randn(2, 2), requires_grad=False),
    "buffer": lambda: torch.nn.Buffer(torch.randn(2, 2)),
    "result": lambda: torch.randn(3, requires_grad=True) * 2,
    "conjugate": lambda: torch.randn(2, dtype=torch.complex64).conj(),
    "zero": lambda: torch._efficientzerotensor((2, 2)),
    "of inference": lambda: torch.inference_mode()(torch.ones)(2),
    "slice without base": lambda: torch.randn(8)[2:5].detach(),
}


def _more(tensor: torch.Tensor) -> tuple[object, ...]:
    kind = type(tensor), isinstance(tensor, torch.nn.Parameter), tensor.is_inference()
    return *_facts(tensor), *kind, tensor.is_leaf, tensor._is_view(), tensor.is_conj()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", PLAIN)
def test_plain_fakes_are_those_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where torch would describe the tensor first, and where it does."""
    tensor = PLAIN[name]()
    theirs = light_fake.light_mode(FakeTensorMode).from_tensor(tensor, static_shapes=True)
    ours = FakeTensors()
    assert ours._plain is not None
    assert _more(ours.of(tensor)) == _more(theirs)
    assert ours.of(tensor) is ours.of(tensor) is ours._mode.from_tensor(tensor, static_shapes=True)
    monkeypatch.setattr(plain_fake, "_is_as_known", lambda: False)
    described = FakeTensors()
    assert described._plain is None
    assert _more(described.of(tensor)) == _more(theirs)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_what_shares_the_memory_of_a_plain_tensor_has_a_fake_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.nn.Parameter(torch.randn(4, 4))
    apart = torch.randn(4, 4)
    sharing = [base, base.detach(), base.data, base.T, base.detach()[1:], base.view(-1)]
    for first in sharing:
        written = []
        for is_known in (True, False):
            with monkeypatch.context() as patch:
                patch.setattr(plain_fake, "_is_as_known", lambda known=is_known: known)
                fakes = FakeTensors()
            fakes.of(first)
            found = [fakes.of(t) for t in (*sharing, apart)]
            *memories, other = (fake.untyped_storage()._cdata for fake in found)
            assert len(set(memories)) == 1 and other not in memories
            before = [fake._version for fake in found]
            fakes.note_write(base)
            written.append([fake._version - n for fake, n in zip(found, before, strict=True)])
        assert written[0] == written[1]


def test_marks_are_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_fake, "sys", SimpleNamespace(modules={}))
    kernels = light_fake._marked_kernels()
    assert kernels
    assert not any(vars(kernel).get("__dynamo_disable") is kernel for kernel in kernels)
    with light_fake.unmarked():
        assert all("__dynamo_disable" in vars(kernel) for kernel in kernels)
        with light_fake.unmarked(), FakeTensors().running():
            torch.empty(2).add(1)
        assert all("__dynamo_disable" in vars(kernel) for kernel in kernels)
    assert not any(vars(kernel).get("__dynamo_disable") is kernel for kernel in kernels)


def _classes(monkeypatch: pytest.MonkeyPatch) -> tuple[object, object, object]:
    """The classes, whether or not something else has loaded the compiler in this process."""
    monkeypatch.setattr(light_fake, "sys", SimpleNamespace(modules={}))
    found = light_fake._light_classes.__wrapped__(FakeTensorMode)
    assert found is not None
    return found


def test_other_threads_and_torch_find_the_data_free_kind_itself() -> None:
    package = torch._subclasses
    mode = FakeTensorMode()
    fake = mode.from_tensor(torch.ones(2))
    begun, done = threading.Event(), threading.Event()

    def program() -> None:
        with unrecognized(lambda tensor: True):
            seen.append(isinstance(fake, package.FakeTensor))
            exec("from torch._subclasses import FakeTensor", {"__name__": "torch._later"}, late := {})
            seen.append(late["FakeTensor"] is FakeTensor)
            begun.set()
            done.wait(60)
        seen.append(isinstance(fake, package.FakeTensor))

    seen: list[bool] = []
    thread = threading.Thread(target=program)
    thread.start()
    try:
        begun.wait(60)
        # torch's compiler asks for the very type.
        assert package.FakeTensor is FakeTensor and type(fake) is package.FakeTensor
        with unrecognized(lambda tensor: False), unrecognized(lambda tensor: True):
            assert not isinstance(fake, package.FakeTensor)
        with pytest.raises(AttributeError, match="no attribute 'FakeTensors'"):
            package.FakeTensors
    finally:
        done.set()
        thread.join()
    assert seen == [False, True, True]
    assert vars(package)["FakeTensor"] is FakeTensor and "__getattr__" not in vars(package)


def test_threads_enter_modes_of_their_own() -> None:
    orders: list[threading.Event] = [threading.Event() for _ in range(3)]
    types: list[type] = []

    def other() -> None:
        with fake_tensors():
            orders[0].set()
            orders[1].wait(60)
        types.append(type(torch.ones(2)))
        orders[2].set()

    thread = threading.Thread(target=other)
    with fake_tensors():
        thread.start()
        orders[0].wait(60)
        with fake_tensors():
            orders[1].set()
            orders[2].wait(60)
            assert type(torch.ones(2)) is FakeTensor
        assert type(torch.ones(2)) is FakeTensor
    thread.join()
    types.append(type(torch.ones(2)))
    assert types == [torch.Tensor, torch.Tensor]
    assert not logging.getLogger("torch._subclasses.fake_tensor").disabled


@pytest.mark.parametrize("state", [torch.inference_mode, lambda: torch.device("meta")], ids=["inference", "device"])
def test_plain_fakes_are_made_whatever_state_the_first_program_runs_in(state: Callable[[], Any]) -> None:
    plain_fake._is_as_known.cache_clear()
    with state():
        assert plain_fake._is_as_known()
