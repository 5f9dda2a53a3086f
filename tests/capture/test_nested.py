"""Nested tensors that torch's encoder makes of padded ones: the graph has padded ones, and the encoder's answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt._torch.library import shim, stable

RULE = {"measure": False}


pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def encoder(**options: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16)).eval()


def padded(lengths: list[int], most: int = 6) -> tuple[Tensor, Tensor]:
    """f32[n, most, 16] and where it is padding."""
    padding = torch.arange(most)[None] >= torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), most, 16), padding


@pytest.mark.spread(2)
@pytest.mark.parametrize("is_training", [False, True])
def test_an_encoder_with_padding_is_one_graph_of_free_sizes(is_training: bool) -> None:
    model = encoder().train(is_training)
    compiled = smelt.compile(model, options=RULE)
    for lengths in ([6, 3, 5], [6, 6, 6], [1, 6, 2], [6, 4], [2, 6, 3, 1]):
        x, padding = padded(lengths)
        for _ in range(2):
            torch.testing.assert_close(
                compiled(x, src_key_padding_mask=padding), model(x, src_key_padding_mask=padding)
            )
    stats = compiled.stats()
    assert stats.builds == 2 and stats.fallbacks == {}


def test_padding_that_is_not_at_the_end_takes_the_other_way() -> None:
    model = encoder()
    compiled = smelt.compile(model, options=RULE)
    x, padding = padded([6, 3, 5])
    gaps = padding.clone()
    gaps[0, 0] = True
    for given in (padding, gaps, padding, gaps):
        torch.testing.assert_close(compiled(x, src_key_padding_mask=given), model(x, src_key_padding_mask=given))
    assert compiled.stats().builds == 1
    (row,) = smelt.explain(compiled).graphs
    # Without the dispatcher's C functions, operators that have none of their own are called through Python.
    assert row["paths"].startswith("all: if") and row["runs"].startswith("natively")
    assert row["runs"] == "natively" or not shim.has(stable.NEW_CELL)


def test_a_trace_has_both_ways() -> None:
    model = encoder()
    x, padding = padded([6, 3, 5])
    program = smelt.trace(lambda x, padding: model(x, src_key_padding_mask=padding), (x, padding))
    gaps = padding.flip(1)
    for given in (padding, gaps, padding):
        torch.testing.assert_close(program(x, given), model(x, src_key_padding_mask=given))
    assert str(program.graph).count("aten._transformer_encoder_layer_fwd.default") == 4


class Directly(nn.Module):
    """The operators by themselves, with a mask that the program makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = encoder().layers[0]

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        valid = torch.arange(x.shape[1])[None] < lengths[:, None]
        nested = torch._nested_tensor_from_mask(x * 2, valid, mask_check=False)
        return self.layer(self.layer(nested)).to_padded_tensor(-1.0, x.shape) + 1


def test_layers_on_nested_tensors() -> None:
    model = Directly().eval()
    compiled = smelt.compile(model, options=RULE)
    for lengths in ([6, 3, 5], [2, 6, 6]):
        x, given = torch.randn(3, 6, 16), torch.tensor(lengths)
        torch.testing.assert_close(compiled(x, given), model(x, given))
    assert compiled.stats().builds == 1 and compiled.stats().fallbacks == {}


def test_other_nested_tensors_are_named() -> None:
    compiled = smelt.compile(lambda x: torch.nested.nested_tensor([x, x[:1]]).to_padded_tensor(0.0) * 2)
    x = torch.randn(2, 3)
    with pytest.warns(smelt.SmeltWarning, match="nested tensor"):
        for _ in range(2):
            assert compiled(x).shape == (2, 2, 3)
