"""What a compiled object's counts look like when they are printed."""

import torch

import smelt


def test_counts_are_short_as_text():
    compiled = smelt.compile(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))))
    with torch.no_grad():
        for rows in (2, 2, 3):
            compiled(torch.ones(rows, 64))
    stats = compiled.stats()
    first, *entries = str(stats).splitlines()
    assert first == "3 calls, 2 builds, 0 evictions"
    assert [line.partition(",")[0] for line in entries if line.startswith("entry")] == [
        f"entry {i}: {row.hits} calls" for i, row in enumerate(reversed(stats.rows))
    ]
    assert any("shape" in line for line in entries if line.startswith("guard failure, 1 times"))
    assert repr(stats) == f"<Stats: {first}, {len(stats.rows)} entries>" and len(str(stats)) < 1000
