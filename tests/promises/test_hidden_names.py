"""Each private name of torch that an adapter uses, hidden in turn: another rung of the ladder, the same answer."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt._torch import state, storage
from smelt._torch.library import pytree, schemas, shim, stable
from smelt._torch.seen import dispatch, dispatch_mode, fake, handles, record_patches
from tests.promises.models import RULE, assert_agrees, block, images
from tests.zoo.build import Sample


class Mixed(nn.Module):
    """Lookups, numbers among tensors, lists of tensors, a write to a buffer, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.cell = nn.Linear(16, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        rows = self.table(x)
        wide = torch.cat([rows, nn.functional.pad(rows[..., 2:], (1, 1))], -1)
        gated = torch.where(wide > 0.1, wide * 2.5, wide.clamp(-0.5, 0.5) ** 2)
        last = self.cell(gated) / 3 - rows[:, torch.tensor([0])]
        self.seen.copy_(last.sum((0, 1)))
        return {"last": last.softmax(-1), "parts": last.split([3, 5], -1)}


def mixed() -> Sample:
    torch.manual_seed(3)
    return Sample("mixed", Mixed().eval(), {"x": torch.randint(0, 11, (2, 5))})


SAMPLES: tuple[Callable[[], Sample], ...] = (block, images, mixed)


@pytest.fixture(autouse=True)
def one_thread(settings: None) -> None:
    """Hundreds of tiny runs: a second thread would mostly be waited for."""
    torch.set_num_threads(1)


LIBRARY = {**RULE, "own_kernels": False}


def check(*samples: Callable[[], Sample], options: Mapping[str, Any] = RULE) -> None:
    """Compile and trace the samples (all by default) afresh and compare with eager."""
    for sample in samples or SAMPLES:
        made = sample()
        expected = made.model(**made.inputs)
        buffers = {name: b.clone() for name, b in made.model.named_buffers()}
        compiled = smelt.compile(made.model, options=options)
        for _ in range(2):
            assert_agrees(compiled(**made.inputs), expected)
        assert_agrees(dict(made.model.named_buffers()), buffers)
        assert compiled.stats().fallbacks == {} and compiled.stats().rows[0].hits == 1


def check_trace() -> None:
    """The same of a trace."""
    made = block()
    program = smelt.trace(made.model, (), made.inputs, options=RULE)
    assert_agrees(program(**made.inputs), made.model(**made.inputs))
    assert program.native_failure is None


def names_used(*samples: Callable[[], Sample], options: Mapping[str, Any] = RULE) -> list[str]:
    """The names that samples ask the adapters for, and those that stand in for a hidden one."""
    asked: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        original = shim.is_hidden

        def spy(name: str) -> bool:
            asked.add(name)
            return original(name)

        patch.setattr(shim, "is_hidden", spy)
        check(*samples, options=options)
    return sorted(asked | set(handles.NAMES))


@pytest.mark.spread(8)
@pytest.mark.parametrize("options", [RULE, LIBRARY], ids=["kernels", "library"])
@pytest.mark.parametrize("sample", SAMPLES, ids=["block", "images", "mixed"])
def test_each_symbol_hidden_in_turn(sample: Callable[[], Sample], options: Mapping[str, Any]) -> None:
    names = names_used(sample, options=options)
    assert len(names) > 25 and "aoti_torch_delete_tensor_object" in names
    assert options is RULE or "torch_call_dispatcher" in names or not shim.has(stable.NEW_CELL)
    for name in names:
        with shim.hidden(name):
            check(sample, options=options)


@pytest.mark.spread(2)
@pytest.mark.parametrize("options", [RULE, LIBRARY], ids=["kernels", "library"])
def test_all_symbols_hidden_at_once(options: Mapping[str, Any]) -> None:
    with shim.hidden(*names_used(options=options)):
        check(options=options)


def test_all_library_products_hidden_at_once() -> None:
    names = [n for n in names_used(options=LIBRARY) if "aoti_torch_cpu" in n or "torch.ops" in n]
    assert names
    with shim.hidden(*names):
        check(options=LIBRARY)


FALLBACKS: dict[str, tuple[Any, str, Any]] = {
    "deterministic": (state, "is_deterministic", torch.are_deterministic_algorithms_enabled),
    "precision": (state, "matmul_precision", torch.get_float32_matmul_precision),
    "autocast": (state, "is_any_autocast", state._any_autocast_by_device),
    "function mode": (state, "has_function_mode", state._has_function_mode_by_override),
    "dispatch mode": (state, "has_dispatch_mode", state._has_dispatch_mode_by_utils),
    "functorch": (state, "in_functorch", state._in_functorch_by_interpreter),
    "jit": (state, "is_jit_tracing", torch.jit.is_tracing),
    "storage": (storage, "same_storage", storage._same_by_query),
    "schema": (schemas, "raw_schema", schemas._schema_by_name),
    "storage key": (storage, "storage_key", storage._key_of_object),
    "pytree": (pytree, "_nodes", {}),
    "fake tensors": (fake, "FakeTensorMode", None),
    "dispatch mode class": (dispatch_mode, "TorchDispatchMode", None),
    "function impl": (record_patches, "_disabled_function", None),
    "dispatch impl": (record_patches, "_disabled_dispatch", None),
    "functorch stack": (dispatch, "_functorch_stack", None),
    "entry": (dispatch, "_HAS_ENTRY", False),
}


def replace_everywhere(patch: pytest.MonkeyPatch, owner: Any, name: str, value: Any) -> None:
    """Put `value` in the place of a name and of every import of it."""
    original = getattr(owner, name)
    patch.setattr(owner, name, value)
    if isinstance(original, bool):
        return
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("smelt.") and vars(module).get(name) is original:
            patch.setattr(module, name, value)


@pytest.mark.spread(10)
@pytest.mark.parametrize("what", FALLBACKS)
def test_each_private_python_name_missing_in_turn(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, value = FALLBACKS[what]
    replace_everywhere(monkeypatch, owner, name, value)
    check()
    check_trace()


def test_all_private_python_names_missing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, value in FALLBACKS.values():
        replace_everywhere(monkeypatch, owner, name, value)
    monkeypatch.setattr(dispatch, "_HAS_BELOW_AUTOGRAD", False)
    assert dispatch.levels() == ("dispatch_mode",)
    with shim.hidden(*names_used()):
        check()
        check_trace()


def private_names(source: str) -> set[str]:
    """The private names of torch that a module imports or reaches from what it imports."""
    if "torch" not in source:
        return set()
    nodes, known, found = list(ast.walk(ast.parse(source))), {"torch": "torch"}, set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            known |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            known |= {name.asname: name.name for name in node.names if name.asname and name.name.startswith("torch")}
            found |= {name.name for name in node.names if name.name.startswith("torch.")}
    for node in nodes:
        path, at = "", node
        while isinstance(at, ast.Attribute):
            path, at = f".{at.attr}{path}", at.value
        if path and isinstance(at, ast.Name) and at.id in known:
            found.add(known[at.id] + path)
        asked = (
            node.args if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr") else []
        )
        if asked and ast.unparse(asked[0]).startswith("torch") and isinstance(asked[1], ast.Constant):
            found.add(f"{ast.unparse(asked[0])}.{asked[1].value}")
    every = (part for name in found | {*known.values()} for part in name.split(".") if name.startswith("torch"))
    return {part for part in every if part.startswith("_") and not part.startswith("__")}


def test_private_names_of_torch_stand_in_one_package() -> None:
    assert private_names("from torch.utils import _pytree as p\np.tree_map(getattr(torch._C, '_get'), 1)") == {
        "_pytree", "_C", "_get",
    }  # fmt: skip
    package = Path(smelt.__file__).parent
    modules = [path for path in package.rglob("*.py") if "_torch" not in path.relative_to(package).parts]
    named = {str(path): private_names(path.read_text()) for path in modules}
    assert len(modules) > 300 and {path: names for path, names in named.items() if names} == {}
