"""Each program of `language`, `torchscript`, `everyday` and `found`: the graph from source and the program's calls
against eager, on every kind of input.
"""

import pytest
import torch

from tests.script.checking import agrees
from tests.script.everyday import CASES as EVERYDAY
from tests.script.found import CASES as FOUND
from tests.script.language import CASES
from tests.script.torchscript import CASES as TORCHSCRIPT


@pytest.mark.spread(20)
@pytest.mark.parametrize("name", list(CASES))
def test_as_in_eager(name):
    fn, calls = CASES[name]
    agrees(fn, *calls)


@pytest.mark.spread(10)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(TORCHSCRIPT))
def test_the_language_of_torchscript(name):
    fn, calls = TORCHSCRIPT[name]
    agrees(fn, *calls)


@pytest.mark.spread(60)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*EVERYDAY, *FOUND])
def test_programs_of_every_day(name):
    fn, calls = (EVERYDAY | FOUND)[name]
    with torch.no_grad():
        agrees(fn, *calls)
