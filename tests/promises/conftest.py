"""Fixtures of the promise tests: a cache of their own, no gradients, the settings of torch put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One folder for all tests here, so that machine code is built once and the user's folder stays as it is."""
    folder = str(tmp_path_factory.mktemp("smelt-cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMELT_CACHE_DIR", folder)
        yield folder


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """A fixed seed, gradients off, the number of threads as it was."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)
