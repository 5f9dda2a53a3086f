"""Each program of `language`: the graph from source and the program's calls against eager, on every kind of input."""

import pytest

from tests.script.checking import agrees
from tests.script.language import CASES


@pytest.mark.parametrize("name", list(CASES))
def test_as_in_eager(name):
    fn, calls = CASES[name]
    agrees(fn, *calls)
