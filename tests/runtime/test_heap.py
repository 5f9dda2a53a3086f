"""Memory that results of earlier calls had is used again."""

from __future__ import annotations

import platform

import pytest

from tests.forked import smelt_forks

_SCRIPT = """
import resource
import torch
import smelt

def double(x):
    return x + x

x = torch.ones(1 << 20)
compiled = smelt.compile(double)
for _ in range(4):
    compiled(x)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    compiled(x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep or return memory as they like")
def test_results_need_no_new_pages() -> None:
    assert int(smelt_forks().run(_SCRIPT)) < 1024, "a result of 4 MiB has 1024 pages"
