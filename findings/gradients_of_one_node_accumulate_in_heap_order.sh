#!/usr/bin/env bash
# torch 2.13.0 (CPU): leaves of one autograd node get their gradients neither in the order of its inputs nor in the reverse: tasks of equal
# priority leave the engine's binary heap as it happens to lie. With 6 inputs hooks run for 0, 2, 5, 4, 1, 3 (with 3 for 0, 1, 2); six
# nodes of one input each, added up, go 5 to 0. Whoever logs, or overlaps communication, by hooks sees orders that depend on how
# operators are grouped.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import torch

print('torch', torch.__version__)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *xs):
        return sum(x.detach() for x in xs)

    @staticmethod
    def backward(ctx, grad):
        return (grad,) * len(ctx.needs_input_grad)


def order(count, together):
    seen = []
    leaves = [torch.zeros(2, requires_grad=True) for _ in range(count)]
    for i, leaf in enumerate(leaves):
        leaf.register_post_accumulate_grad_hook(lambda _, i=i: seen.append(i))
    total = Sum.apply(*leaves) if together else sum(Sum.apply(leaf) for leaf in leaves)
    total.sum().backward()
    return seen


found = {(count, together): order(count, together) for count in (3, 6) for together in (True, False)}
for (count, together), seen in found.items():
    print(count, 'leaves of one node' if together else 'leaves of a node each', seen)
assert found[3, True] == [0, 1, 2]
assert found[6, True] == [0, 2, 5, 4, 1, 3]
assert found[6, False] == [5, 4, 3, 2, 1, 0]
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
