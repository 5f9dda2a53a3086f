"""Programs that Smelt brings along (the benchmark's, the demo's) are captured like anyone's: own lines, own guards."""

from __future__ import annotations

import torch

import smelt
from smelt.bench.programs import Mlp


def test_their_lines_are_in_the_graph() -> None:
    with torch.no_grad():
        graph = smelt.trace(Mlp().eval(), (torch.randn(2, 768),)).graph
    assert all(node.span is not None and node.span.file.endswith("programs.py") for node in graph.walk())


def test_what_they_read_is_guarded() -> None:
    model = Mlp().eval()
    compiled = smelt.compile(model, options={"cache_dir": ""})
    x = torch.randn(2, 768)
    with torch.no_grad():
        for _ in range(2):
            compiled(x)
        for name, layer in list(model.named_children()):
            if isinstance(layer, torch.nn.Linear):
                setattr(model, name, torch.nn.Linear(layer.in_features, layer.out_features))
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
