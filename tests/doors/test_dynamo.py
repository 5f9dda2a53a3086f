"""`torch.compile(f, backend="smelt")`, found by its entry point, in processes that import Dynamo once."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import pytest

from tests.forked import Forks

Run = Callable[[str], object]

_HEAD = """
import warnings, torch
warnings.simplefilter("ignore")
torch.set_num_threads(1)
torch.manual_seed(0)
close = torch.testing.assert_close
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    forks = Forks("import torch, torch._dynamo, smelt; smelt.compile")
    yield lambda code: forks.run(_HEAD + textwrap.dedent(code))
    forks.close()


def test_the_backend_is_found_by_its_name(run: Run) -> None:
    run("""
        import sys
        assert "smelt" in torch.compiler.list_backends(exclude_tags=())
        g = torch.compile(lambda x: torch.sin(x) * 2 + x, backend="smelt", fullgraph=True)
        for n in (3, 3, 3):
            x = torch.randn(n, 4)
            close(g(x), torch.sin(x) * 2 + x)
        from smelt.compiler.doors.dynamo import _Served
        import gc
        served = [o for o in gc.get_objects() if type(o) is _Served]
        stats = served[0]._general.stats()
        assert stats.builds == 1 and not stats.fallbacks and stats.calls == 3, stats
    """)


def test_structures_breaks_and_numbers(run: Run) -> None:
    run("""
        seen = []
        def f(x, y, named, scale=2.0, none=None):
            z = (x @ y).relu() * scale
            seen.append(float(z.sum()))          # a graph break
            return {"a": z.sum(0), "b": (z * 2, none, x), "c": [named["k"] + 1]}
        g = torch.compile(f, backend="smelt")
        for scale in (2.0, 2.0, 3.0):
            x, y, k = torch.randn(3, 4), torch.randn(4, 5), torch.randn(2)
            a, b = f(x, y, {"k": k}, scale=scale), g(x, y, {"k": k}, scale=scale)
            close(a, b)
            assert b["b"][2] is x
    """)


@pytest.mark.spread(3)
@pytest.mark.parametrize("dynamic", ["None", "True", "False"])
def test_sizes_that_change(run: Run, dynamic: str) -> None:
    run(f"""
        m = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
        c = torch.compile(m, backend="smelt", dynamic={dynamic})
        g = torch.compile(lambda x: x.reshape(-1).new_zeros(x.shape[0] + 1) + x.sum() / x.shape[1],
                          backend="smelt", dynamic={dynamic})
        with torch.no_grad():
            for n in (2, 3, 5, 7, 1, 3, 2, 11, 13, 17, 19, 23):
                x = torch.randn(n, 8)
                close(c(x), m(x))
                close(g(x), x.new_zeros(n + 1) + x.sum() / 8)
    """)


def test_gradients_run_the_graph_itself(run: Run) -> None:
    run("""
        m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        c = torch.compile(m, backend="smelt")
        for _ in range(3):
            x = torch.randn(2, 4, requires_grad=True)
            c(x).sum().backward()
            found, weight = x.grad, m[0].weight.grad
            x.grad = m[0].weight.grad = None
            m(x).sum().backward()
            close(found, x.grad)
            close(weight, m[0].weight.grad)
            m.zero_grad()
        with torch.no_grad():
            y = torch.randn(2, 4)
            for _ in range(3):
                close(c(y), m(y))
    """)


def test_what_is_written(run: Run) -> None:
    run("""
        class Cache(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("count", torch.zeros(()))
                self.norm = torch.nn.BatchNorm1d(4)
            def forward(self, x, into):
                self.count.add_(1)
                into[0].copy_(x[0])
                x.mul_(2)
                return self.norm(x) + self.count
        import copy
        a = Cache(); b = copy.deepcopy(a); c = torch.compile(b, backend="smelt")
        with torch.no_grad():
            for _ in range(4):
                x, into = torch.randn(3, 4), torch.zeros(2, 4)
                y, other = x.clone(), into.clone()
                close(c(y, other), a(x, into))
                close((y, other), (x, into))
                close(dict(b.named_buffers()), dict(a.named_buffers()))
    """)


def test_parameters_that_change(run: Run) -> None:
    """They are packed while they are the very ones; another module of the same code, and new contents, are seen."""
    run("""
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(8, 8)
            def forward(self, x):
                return self.inner(x).relu()
        class Two(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = Block(), Block()
            def forward(self, x):
                return self.b(self.a(x))
        m = Two().eval()
        for block in (m.a, m.b):
            block.compile(backend="smelt")
        plain = Two().eval()
        plain.load_state_dict(m.state_dict())
        with torch.no_grad():
            for step in range(8):
                x = torch.randn(2, 8)
                close(m(x), plain(x))
                if step == 3:
                    for part in (m, plain):
                        part.a.inner.weight.mul_(3)
                if step == 5:
                    for part in (m, plain):
                        part.b.inner.weight = torch.nn.Parameter(torch.ones(8, 8))
    """)


def test_control_flow_of_torch(run: Run) -> None:
    run("""
        def f(x):
            y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
            return torch._higher_order_ops.while_loop(lambda z: z.abs().sum() > 1, lambda z: (z * 0.5,), (y,))[0]
        g = torch.compile(f, backend="smelt")
        with torch.no_grad():
            for sign in (1, -1, 1, 3):
                x = torch.rand(3, 4) * sign
                close(g(x), f(x))
    """)


def test_what_dynamo_made_is_explained(run: Run) -> None:
    run("""
        import smelt
        inner = torch.nn.Linear(4, 4)
        def broken(x):
            y = inner(x).relu()
            torch._dynamo.graph_break()
            return y * 2 + 1
        class Holder:
            def method(self, x):
                return x.sin() + 1
        holder = Holder()
        class Placed(torch.nn.Linear):
            def forward(self, x):
                return super().forward(x).relu()
        module, placed = torch.nn.Sequential(inner, torch.nn.ReLU()), Placed(4, 2)
        placed.compile(backend="smelt")
        made = {2: (torch.compile(broken, backend="smelt"), "broken")}
        made[1] = (torch.compile(module, backend="smelt"), "Sequential")
        others = [(torch.compile(holder.method, backend="smelt"), "Holder"), (placed, "Placed")]
        try:
            smelt.explain(made[2][0])
        except smelt.SmeltError as error:
            assert error.code == "S0106" and "or call it" in error.fix
        else:
            raise SystemExit("nothing was called yet")
        with torch.no_grad():
            for compiled, name in (*made.values(), *others):
                compiled(torch.ones(2, 4)), compiled(torch.ones(2, 4))
                report = smelt.explain(compiled)
                count = next((n for n, pair in made.items() if pair[0] is compiled), 1)
                assert report.name == name and [row["entry"] for row in report.graphs] == list(range(count))
                assert all(row["runs"] == "natively" for row in report.graphs)
                assert {row["entry"] for row in report.guards} == set(range(count)) and str(report)
        aside = torch.compile(lambda x: x + 1, backend="eager")
        aside(torch.ones(2))
        try:
            smelt.explain(aside)
        except smelt.SmeltError:
            pass
        else:
            raise SystemExit("another backend's graphs were explained")
    """)


def test_options_reach_smelt(run: Run) -> None:
    run("""
        import smelt
        g = torch.compile(lambda x: x * 2, backend="smelt", options={"strict": True})
        close(g(torch.ones(3)), torch.full((3,), 2.0))
        try:
            torch.compile(lambda x: x * 3, backend="smelt", options={"no_such_option": 1})(torch.ones(3))
        except Exception as error:
            assert "no_such_option" in str(error), error
        else:
            raise SystemExit("an unknown option was taken")
    """)


def test_weights_go_away_with_what_torch_forgets(run: Run) -> None:
    run("""
        import gc, weakref
        class Held(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 4)
            def forward(self, x):
                return self.layer(x)
        module = Held().eval()
        weight = weakref.ref(module.layer.weight)
        compiled = torch.compile(module, backend="smelt")
        with torch.no_grad():
            for rows in (2, 2, 3):
                compiled(torch.randn(rows, 4))
        del module, compiled
        torch._dynamo.reset()
        gc.collect()
        assert weight() is None
    """)
