#!/usr/bin/env bash
# torch 2.13.0: set_model_state_dict(..., broadcast_from_rank0=True) sends a tensor of rank 0 that is not contiguous (a
# transposed weight, say) as it is stored: rank 0 has its numbers afterwards, all other ranks have them in another order. No
# error and no warning. A contiguous tensor of the same numbers arrives right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

OPTIONS = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def loaded(rank, weight):
    model = torch.nn.Linear(3, 2, bias=False)
    set_model_state_dict(model, {"weight": weight} if rank == 0 else {}, options=OPTIONS)
    return model.weight.tolist()


def of_rank(rank, store, queue):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    transposed = torch.arange(6.0).view(3, 2).t()
    queue.put((rank, [loaded(rank, transposed), loaded(rank, transposed.contiguous())]))
    dist.destroy_process_group()


if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.Queue()
    store = os.path.join(sys.argv[1], "store")
    processes = [context.Process(target=of_rank, args=(rank, store, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    print("torch", torch.__version__)
    for rank in range(2):
        print(f"rank {rank}: transposed {found[rank][0]}, contiguous {found[rank][1]}")
    right, wrong = [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]], [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert found == {0: [right, right], 1: [wrong, right]}, found
PYTHON
"$folder/venv/bin/python" "$folder/try.py" "$folder"
