"""Times of a sum over ranks on this machine, over gloo: `python -m benchmarks.sums`.

Each rank has a tensor [rows, 4096] of float32, as after one half of a layer of a 7B model. "whole" exchanges the
tensors, and each rank adds them in rank order; "shares" lets each rank add a share and exchange the results
(`Group.sum` chooses between the two); "all_reduce" is gloo's, whose order of additions depends on the size;
"all_gather" is gloo's, with the same addition. The ranks start each sum together. The result is the median, and the
least, of all calls on rank 0.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, multiprocessing
from torch import distributed as dist

from model.network import group as groups
from model.network.group import Group
from model.sharding.layout import Layout

DIM, ROWS, RANKS, CALLS = 4096, (1, 32, 512), (2, 4), 100


def all_reduce(x: Tensor) -> None:
    dist.all_reduce(x)


def all_gather(x: Tensor) -> None:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    for part in parts[1:]:
        parts[0].add_(part)


def ways(group: Group) -> Mapping[str, Callable[[Tensor], object]]:
    return {
        "whole": lambda x: groups.add(group.gather_all(x)),
        "shares": group.sum_by_shares,
        "all_gather": all_gather,
        "all_reduce": all_reduce,
    }


def seconds(call: Callable[[Tensor], object], n_rows: int) -> list[float]:
    """The time of each call, after some that do not count."""
    found = []
    for _ in range(CALLS + 5):
        x = torch.randn(n_rows, DIM)
        dist.barrier()
        start = perf_counter()
        call(x)
        found.append(perf_counter() - start)
    return found[5:]


def measure(rank: int, n: int, meeting: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=n)
    for name, call in ways(Group(Layout(n).place(rank), torch.device("cpu"))).items():
        for n_rows in ROWS:
            times = seconds(call, n_rows)
            if rank == 0:
                figures = f"median {median(times) * 1e6:8.0f} us, least {min(times) * 1e6:8.0f} us"
                print(f"{n} ranks, {n_rows:3} rows, {name:10} {figures}")
    dist.destroy_process_group()


def main() -> None:
    for n in RANKS:
        with tempfile.TemporaryDirectory() as directory:
            multiprocessing.spawn(measure, (n, f"{directory}/meeting"), nprocs=n)


if __name__ == "__main__":
    main()
