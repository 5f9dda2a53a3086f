"""Whole programs: shapes of control flow that meet in practice, and what must stay as it was."""

import gc
import random

import pytest
import torch

from smelt.capture import capture
from smelt.capture.staging.stage import stage
from smelt.ops.evaluate import evaluate
from tests.staging.programs import check, outcome, refused, same, staged

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])


def test_lerp_and_mse_of_the_seeds():
    def lerp(x, y, w):
        if w < 0:
            w = torch.zeros_like(w)
        elif w > 1:
            w = torch.ones_like(w)
        return x + w * (y - x)

    def mse(x, y):
        total = torch.zeros(())
        for i in range(len(x)):
            d = x[i] - y[i]
            if (d.abs() > 1).any():
                total = total + d.abs().sum()
            else:
                total = total + (d * d).sum()
        return total / x.numel()

    check(lerp, *[(X, -X, torch.tensor(w)) for w in (0.3, -1.0, 2.0)])
    check(mse, (X, X + 0.1), (X, -X), (X, X + torch.tensor([[0.0], [2.0]])))


def test_functions_that_are_not_converted():
    scope: dict = {}
    exec("def helper(x):\n    return 1 if x.sum() > 0 else 2\n", scope)
    helper = scope["helper"]

    def f(x):
        return x * helper(x) + helper(x - 2)

    check(f, (X,), (-X,), (X * 10,))


def test_closures_lambdas_and_nested_functions():
    def make(scale):
        def inner(x):
            step = lambda v: v * scale if v.sum() > 0 else v / scale  # noqa: E731

            def loop(v):
                nonlocal_count = 0
                while v.abs().max() < 10:
                    v = step(v) + 1
                    nonlocal_count += 1
                return v, nonlocal_count

            return loop(x)

        return inner

    check(make(3.0), (X,), (X * 10,), (X + 1,))


def test_nonlocal_counter():
    def f(x):
        count = 0

        def bump(v):
            nonlocal count
            if v.sum() > 0:
                count += 1
            return v * count

        y = bump(x)
        y = bump(y - 1)
        return y, count

    check(f, (X,), (-X,), (X * 10,))


def test_recursion():
    def halve(x, depth=0):
        if x.abs().max() < 2 or depth > 5:
            return x
        return halve(x / 2, depth + 1) + 1

    check(halve, (X,), (X * 10,), (X * 0.1,), (X * 1e6,))


def test_match_walrus_with_try():
    def f(x):
        with torch.no_grad():
            n = int(x.sum())
            match n:
                case 0:
                    y = x
                case 5 | 6:
                    y = x + 1
                case _ if n > 10:
                    y = x * 2
                case _:
                    y = -x
            while (m := y.max()) < 20:
                y = y + m + 1
            try:
                z = y / n if n else y
            finally:
                y = y + 1
        return y, z

    check(f, (X,), (X * 0,), (X * 3,), (-X,))


def test_top_k_of_a_threshold_and_views_in_a_loop():
    def f(x):
        y = x.clone()
        view = y.view(-1)
        i = 0
        while i < view.numel() and view[i] < 2.5:
            view[i] = view[i] * 10
            i += 1
        y.t()[0] += i
        return y

    check(f, (X,), (X * 5,), (X * 0,))


def test_early_exit_stack_of_layers():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(4))
            self.heads = torch.nn.ModuleList(torch.nn.Linear(3, 2) for _ in range(4))

        def forward(self, x, threshold: float = 0.7):
            for i, (layer, head) in enumerate(zip(self.layers, self.heads)):  # noqa: B905
                x = torch.tanh(layer(x))
                logits = head(x)
                if logits.softmax(-1).max() > threshold:
                    return logits, i
            return logits, -1

    torch.manual_seed(1)
    net = Net().eval()
    with torch.no_grad():
        check(net, *[(X * k,) for k in (1.0, 10.0, -3.0, 0.01)])


def test_adaptive_computation():
    class Act(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.RNNCell(3, 4)
            self.halt = torch.nn.Linear(4, 1)

        def forward(self, x):
            h = torch.zeros(2, 4)
            total = torch.zeros(2)
            steps = 0
            while steps < 10 and not (total > 0.99).all():
                h = self.cell(x, h)
                total = total + torch.sigmoid(self.halt(h)).squeeze(-1)
                steps += 1
            return h, total, steps

    torch.manual_seed(1)
    with torch.no_grad():
        check(Act(), (X,), (X * 10,), (-X,))


def test_router():
    class Router(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = torch.nn.Linear(3, 3)
            self.experts = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))

        def forward(self, x):
            choice = self.gate(x).argmax(-1)
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                rows = (choice == i).nonzero().squeeze(-1)
                if rows.numel() > 0:
                    out[rows] = expert(x[rows])
            return out

    torch.manual_seed(1)
    with torch.no_grad():
        check(Router(), (torch.randn(6, 3),), (torch.randn(6, 3),), (torch.ones(6, 3),))


def test_batch_norm_in_one_arm():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, x):
            if x.sum() > 0:
                return self.norm(x)
            return x

    net = Net().train()
    captured = staged(net, (X,))
    assert captured.error is None, captured.error
    # `staged` runs it once natively, and staging adds nothing.
    assert net.norm.num_batches_tracked == 1
    assert captured.graph is not None
    for given in (X, -X):
        mean, count = net.norm.running_mean.clone(), int(net.norm.num_batches_tracked)
        got = evaluate(captured.graph, [given], captured.state.lookup)[0]
        ours, net.norm.running_mean[:] = net.norm.running_mean.clone(), mean
        net.norm.num_batches_tracked.fill_(count)
        assert torch.equal(got, net(given)) and torch.equal(net.norm.running_mean, ours)


def test_everything_is_as_before():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.count = 0
            self.history = []

        def forward(self, x):
            self.count += 1
            y = torch.dropout(self.linear(x), 0.5, True)
            if y.sum() > 0:
                return y
            return -y

    net = Net()
    code = Net.forward.__code__
    native = capture(net, (X,))
    state = {k: v.clone() for k, v in net.state_dict().items()}
    random_state, python_state = torch.get_rng_state(), random.getstate()
    captured = stage(net, (X,), {}, target=None, name=None, native=native)
    assert captured.error is None, captured.error
    assert net.count == 1 and Net.forward.__code__ is code
    assert torch.equal(torch.get_rng_state(), random_state) and random.getstate() == python_state
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert torch.Tensor.shape is torch._C.TensorBase.shape and "item" not in vars(torch.Tensor)
    assert torch.is_grad_enabled()


def test_a_failure_leaves_everything_as_before():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(1)
            if x.sum() > 0:
                self.seen.append(x.numpy().sum())
            return x

    net = Net()
    native = capture(net, (X,))
    code, seen = Net.forward.__code__, list(net.seen)
    assert stage(net, (X,), {}, target=None, name=None, native=native).error is not None
    assert Net.forward.__code__ is code and net.seen == seen
    assert "item" not in vars(torch.Tensor) and print.__module__ == "builtins"


def test_results_that_are_arguments():
    def f(x, y):
        return x if x.sum() > y.sum() else y

    def g(x, items):
        if x.sum() > 0:
            x = x + 1
        return items, x

    check(f, (X, X + 1), (X, X - 1))
    check(g, (X, [X + 1, X * 2]), (-X, [X * 1, X + 0]))


def test_types_of_numbers_differ():
    def f(x):
        n = 2 if x.sum() > 0 else 0.5
        return x * n

    def g(x):
        y = x if x.sum() > 0 else x.to(torch.float64)
        return y.sum().to(torch.float32)

    check(f, (X,), (-X,))
    check(g, (X,), (-X,))


def test_gradients_flow_or_are_refused():
    def f(x):
        y = (x * x).sum()
        y.backward()
        return x.grad if y > 0 else x

    assert "gradients" in refused(f, X.clone().requires_grad_())


def test_bool_of_several_elements_raises_as_eager():
    def f(x):
        if x.sum() > 0:
            return x if x else -x
        return x

    captured = staged(lambda x: x if x.sum() > 0 else -x, (X,))
    assert captured.error is None
    with pytest.raises(RuntimeError, match="ambiguous"):
        f(X)


def test_items_as_indices_and_bounds():
    def f(x, i):
        n = i.item()
        y = x[n]
        z = x[:, : n + 1]
        w = x.narrow(1, n, 1)
        v = x.clone()
        v[n, 1:] = 5
        v[i] += 1
        return y, z, w, v, x.view(-1)[n * 2], torch.arange(n), torch.full((n, 2), n)

    check(f, (X, torch.tensor(1)), (X, torch.tensor(0)))


def test_tensors_of_staged_numbers():
    def f(x):
        a, b = x.sum().item(), int(x.max())
        return torch.tensor([a, 2.0]), torch.tensor(b), torch.tensor([b, b + 1]), torch.tensor(a > 0)

    check(f, (X,), (-X,))


def test_strings_and_sorting():
    def f(x):
        values = x[0].tolist()
        ordered = sorted(values, reverse=True)
        name = "big" if values[0] > 0 else "small"
        print(f"{name:>8}|{ordered[0]:.2f}", end="!\n")
        return ordered[0], name

    check(f, (X,), (-X,))


@pytest.mark.usefixtures("young_heap")
def test_repeats_of_a_run_do_not_grow():
    def f(x):
        return x if x.sum() > 0 else -x

    native = capture(f, (X,))
    stage(f, (X,), {}, target=None, name=None, native=native)
    gc.collect()
    held = sum(type(o) is torch._subclasses.FakeTensor for o in gc.get_objects())
    for _ in range(3):
        stage(f, (X,), {}, target=None, name=None, native=native)
    gc.collect()
    assert sum(type(o) is torch._subclasses.FakeTensor for o in gc.get_objects()) <= held


def test_the_helpers_tell_differences():
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.float64)) and not same(1, True)
    assert outcome(lambda: 1 / 0)[0][0] is ZeroDivisionError
