"""What C gives is what Python gives, bit for bit; what it refuses, it refuses with a text."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from tests.ingots_c.client import Context, Failed
from tests.ingots_c.conftest import Built

ARGUMENT, FILE, DATA, OTHER_PATH, CANCELLED = 1, 2, 5, 6, 7


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flat(item)]
    return [torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)]


def alike(found: list[torch.Tensor], wanted: Any) -> bool:
    pairs = list(zip(found, flat(wanted), strict=True))
    return all(a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() for a, b in pairs) and all(
        torch.equal(a.view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
        for a, b in ((a.contiguous(), b) for a, b in pairs)
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_results_are_pythons(built: Built, threads: int) -> None:
    context, loaded = built.model().context(threads), built.loaded()
    with torch.no_grad():
        for name, calls in built.calls.items():
            for inputs in calls:
                wanted = loaded.entry(name)(*inputs)
                assert alike(context.call(name, *inputs), wanted), name


def test_a_call_again_gives_the_same(built: Built) -> None:
    context = built.model().context()
    x = built.calls["block"][0][0]
    first = context.call("block", x)
    assert all(alike(context.call("block", x), first) for _ in range(5))


def test_state_is_each_contexts_own_and_is_reset(built: Built) -> None:
    model, loaded = built.model(), built.loaded()
    one, other = model.context(), model.context()
    xs = [inputs[0] for inputs in built.calls["counter"]]
    with torch.no_grad():
        assert alike(one.call("counter", xs[1]), loaded.entry("counter")(xs[1]))
        assert alike(one.call("counter", xs[2]), loaded.entry("counter")(xs[2]))
        assert int(one.state("counter.at")) == int(loaded.state_dict()["counter.at"]) == 3
        assert alike(other.call("counter", xs[1]), loaded.reset().entry("counter")(xs[1]))
        one.reset()
        assert alike(one.call("counter", xs[1]), loaded.reset().entry("counter")(xs[1]))


def test_contexts_run_in_parallel(built: Built) -> None:
    model = built.model()
    calls = [(name, inputs[0]) for name, inputs in built.calls.items() if name in ("wide", "block", "lstm", "mlp")]
    wanted = {name: model.context().call(name, *inputs) for name, inputs in calls}
    wrong: list[str] = []

    def work(context: Context) -> None:
        for _ in range(8):
            wrong.extend(name for name, inputs in calls if not alike(context.call(name, *inputs), wanted[name]))

    workers = [threading.Thread(target=work, args=(model.context(threads),)) for threads in (1, 2, 2, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


class TestRefused:
    def test_arguments_that_do_not_fit(self, built: Built) -> None:
        context = built.model().context()
        x = built.calls["mlp"][0][0]
        cases = {
            "its dtype is 7, the program takes 6": x.double(),
            "size 1 is 15, the program takes 16": x[:, :15].contiguous(),
            "the number of its dimensions is 1": x[0],
            "stride 1 is 3, the program takes 1": x.t().contiguous().t(),
        }
        for text, given in cases.items():
            with pytest.raises(Failed, match=text) as failed:
                context.call("mlp", given)
            assert failed.value.status == ARGUMENT and "input 0, x0" in failed.value.text
        with pytest.raises(Failed, match="takes 1 inputs, 2 were passed"):
            context.call("mlp", x, x)
        context.model.library.number["none"] = 99
        context.model.library.entries += context.model.library.entries * 9
        with pytest.raises(Failed, match="there is no entry point 99"):
            context.call("none")
        with pytest.raises(Failed, match="has no state weight that calls write to"):
            context.state("weight")

    def test_data_that_raise(self, built: Built) -> None:
        context = built.model().context()
        cases = {
            "an index out of range": ("tied", torch.full((2, 5), 20)),
            "the result is beyond 64 bits": ("numbers", torch.tensor([2**62, 2])),
            "division by zero": ("numbers", torch.tensor([5, 0])),
            "the result is too large for a float": ("numbers", torch.tensor([2**40, 300])),
        }
        for text, (name, given) in cases.items():
            with pytest.raises(Failed, match=text) as failed:
                context.call(name, given)
            assert failed.value.status == DATA and failed.value.text.startswith(name)
        good = built.calls["tied"][0]
        with torch.no_grad():
            assert alike(context.call("tied", *good), built.loaded().entry("tied")(*good))

    def test_data_that_lead_elsewhere(self, built: Built) -> None:
        with pytest.raises(Failed, match=r"another path .* captured for False at .*programs.py:\d+") as failed:
            built.model().context().call("numbers", torch.tensor([-2, 3]))
        assert failed.value.status == OTHER_PATH

    def test_a_call_is_cancelled(self, built: Built) -> None:
        context = built.model().context()
        raised: list[Failed] = []

        def run() -> None:
            try:
                context.call("endless", torch.ones(2))
            except Failed as failed:
                raised.append(failed)

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            context.c.smelt_cancel(context.handle)
            time.sleep(0.01)
        assert [failed.status for failed in raised] == [CANCELLED]
        assert alike(context.call("endless", torch.zeros(2)), torch.zeros(2))
