"""What kernels for data-free tensors ask of symbolic sizes is told for numbers as torch tells it, and loads nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental import symbolic_shapes

from smelt._torch.seen.plain_sizes import FUNCTIONS
from tests.forked import smelt_forks

_SIZES: tuple[tuple[Any, ...], ...] = (
    (True,), (False,), (0,), (7,), (-1,), (2.5,), (None,), ("x",), (torch.tensor(True),), (True, False), (True, True),
    (False, False, True), (3, 3), (3, 4), (True, 1), (1, 1.0), ((2, 3), [2, 3]), ((2, 3), (2, 4)), ((2,), (2, 3)),
    ((), ()), ((2, (3,)), (2, (3,))), ((2, True), (2, 1)), (3, (3,)), ([0], [False]), (True, "why"),
)  # fmt: skip
_COMPILES = """
    import sys
    import torch
    from torch.nn import functional as F
    import smelt

    convolution = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval()
    frames = torch.nn.Sequential(torch.nn.Conv3d(3, 4, 3), torch.nn.BatchNorm3d(4)).eval()
    transposed = torch.nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1).eval()
    recurrent = torch.nn.GRU(5, 6, batch_first=True)
    bags = torch.nn.EmbeddingBag(10, 5)
    image, rows = torch.randn(2, 3, 8, 8), torch.randn(4, 5)
    programs = {
        "reflect": lambda: F.pad(image, (1, 1, 1, 1), mode="reflect").sin(),
        "replicate": lambda: F.pad(rows, (2, 2), mode="replicate").sin(),
        "stack": lambda: torch.stack([rows, rows.sin()], 1),
        "recurrent": lambda: recurrent(rows[None])[0],
        "folded": lambda: convolution(image),
        "folded frames": lambda: frames(torch.ones(1, 3, 4, 4, 4)),
        "transposed": lambda: transposed(image),
        "flip": lambda: rows.flip(0) + 1,
        "batched": lambda: torch.bmm(image[0], image[1]).relu(),
        "bags": lambda: bags(torch.tensor([[1, 2], [3, 4]])),
        "scatter": lambda: torch.zeros(6, 5).index_add(0, torch.tensor([0, 2, 2, 5]), rows),
        "einsum": lambda: torch.einsum("bchw,dchw->bd", image, image),
        "layouts": lambda: image.to(memory_format=torch.channels_last).var((2, 3)) + 1,
        "broadcast": lambda: torch.atan2(rows[:, :1], rows).to(torch.float64),
    }
    with torch.no_grad():
        for name, program in programs.items():
            expected, got = program(), smelt.compile(program)()
            assert torch.allclose(got, expected, atol=1e-5), name
            found = [module for module in ("sympy", "torch._dynamo") if module in sys.modules]
            assert not found, (name, found)
    print("done")
"""


def _outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> object:
    try:
        found = function(*args)
    except Exception as error:
        return type(error)
    return type(found), found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_told_as_torch_tells_them(name: str) -> None:
    for args in _SIZES:
        assert _outcome(FUNCTIONS[name], args) == _outcome(getattr(symbolic_shapes, name), args), args


def test_programs_compile_without_torchs_symbolic_shapes() -> None:
    assert smelt_forks().run(textwrap.dedent(_COMPILES)).split()[-1] == "done"


def test_what_is_no_number_is_torchs_own() -> None:
    asked = """
        import sys, threading
        import torch
        from smelt._torch.seen.plain_sizes import plain_sizes

        name = "torch.fx.experimental.symbolic_shapes"
        with plain_sizes():
            with plain_sizes():
                from torch.fx.experimental.symbolic_shapes import guard_or_false
                assert guard_or_false(True) is True and "sympy" not in sys.modules
            assert name in sys.modules and "sympy" not in sys.modules
        assert name not in sys.modules
        with plain_sizes():
            from torch.fx.experimental.symbolic_shapes import ShapeEnv, sym_eq
            assert name in sys.modules and "sympy" in sys.modules
        import torch.fx.experimental.symbolic_shapes as own
        assert sys.modules[name] is own and own.ShapeEnv is ShapeEnv
        size = ShapeEnv().create_unbacked_symint()
        assert guard_or_false is not own.guard_or_false and sym_eq is not own.sym_eq
        assert guard_or_false(size == 7) is False and own.guard_or_true(size == 7) is True
        assert isinstance(sym_eq((size, 2), (size + 1, 2)), (bool, torch.SymBool))
        print("done")
    """
    assert smelt_forks().run(textwrap.dedent(asked)).split()[-1] == "done"


def test_types_promote_with_expressions_as_torch_has_it() -> None:
    asked = """
        import sys
        import torch
        from torch import _prims_common
        from smelt._torch.seen.plain_sizes import plain_sizes

        kind = _prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
        code = _prims_common.elementwise_dtypes.__code__

        def promoted(*args):
            try:
                return _prims_common.elementwise_dtypes(*args, type_promotion_kind=kind)
            except ValueError as error:
                return str(error)

        calls = [(torch.ones(2).char(), 2), (torch.ones(2).half(), 2.5), (True,), (torch.ones(()), None), ("x",)]
        with plain_sizes():
            here = [promoted(*args) for args in calls]
            assert "sympy" not in sys.modules and "Unexpected type" in here[-1]
        assert _prims_common.elementwise_dtypes.__code__ is code and here == [promoted(*args) for args in calls]
        import sympy
        n = sympy.Symbol("n", integer=True)
        calls = [(n, 2), (torch.ones(2), n + 1), (sympy.Float(2.5), 3), (n > 2, True), (object(),)]
        with plain_sizes():
            assert _prims_common.elementwise_dtypes.__code__ is not code
            here = [promoted(*args) for args in calls]
        assert here == [promoted(*args) for args in calls]
        print("done")
    """
    assert smelt_forks().run(textwrap.dedent(asked)).split()[-1] == "done"
