"""Several replicas behind a balancer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from zlib import crc32

from service.commands.simulate.costs import Costs
from service.commands.simulate.replica import Replica, Served
from service.commands.simulate.requests import Request

Balancer = Callable[[int, Request, Sequence[Replica]], int]
"""Chooses the replica of a request by the request's number."""


def round_robin(number: int, request: Request, replicas: Sequence[Replica]) -> int:
    return number % len(replicas)


def least_requests(number: int, request: Request, replicas: Sequence[Replica]) -> int:
    """The replica with the fewest requests in flight. Replicas that have equally few take turns."""
    n = len(replicas)
    return min(range(n), key=lambda index: (replicas[index].in_flight, (index - number) % n))


def hashing(number: int, request: Request, replicas: Sequence[Replica]) -> int:
    """The replica of the conversation: by its name, else by the prompt's first block; else each request has one."""
    name = request.conversation or (f"block {request.prefix[0]}" if request.prefix else f"request {number}")
    return crc32(name.encode()) % len(replicas)


BALANCERS: dict[str, Balancer] = {"round-robin": round_robin, "least-requests": least_requests, "hash": hashing}


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas after all requests, and what became of each request."""

    replicas: tuple[Replica, ...]
    served: list[Served]

    @property
    def seconds(self) -> float:
        """From the first arrival to the end of the last answer, or to the last arrival if that is later."""
        start = self.served[0].request.at
        return max(self.served[-1].request.at, *(item.end for item in self.served if not item.refused), start) - start


def simulate(
    requests: Iterable[Request],
    costs: Costs,
    n_replicas: int,
    balancer: Balancer,
    max_queue: int,
    on_request: Callable[[], None] = lambda: None,
) -> Fleet:
    """Serve all requests, which come in the order of time. `on_request` is called after each arrival."""
    replicas = tuple(Replica(costs, max_queue) for _ in range(n_replicas))
    served: list[Served] = []
    watched = balancer is least_requests  # it reads all replicas at each arrival
    for number, request in enumerate(requests):
        if watched:
            for replica in replicas:
                replica.run(request.at)
        chosen = replicas[balancer(number, request, replicas)]
        chosen.run(request.at)
        served.append(Served(request))
        chosen.submit(number, served[-1])
        on_request()
    for replica in replicas:
        replica.run(inf)
    return Fleet(replicas, served)
