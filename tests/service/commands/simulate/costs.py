"""Costs and requests whose simulation can be done on paper."""

import json
from pathlib import Path
from typing import Any

from model.batch import PoolSpec
from service.commands.simulate.costs import Costs, Line, engine, to_json
from service.commands.simulate.fleet import Balancer, Fleet, round_robin, simulate
from service.commands.simulate.requests import Request


def costs(line: Line = Line(step=1.0), request: float = 0.0, pages: int = 64, **limits: Any) -> Costs:  # noqa: B008
    """Each step takes a second, if no other line is given."""
    facts = {"page_size": 4, "max_model_len": 128, "max_sequences": 4, "max_step_tokens": 8} | limits
    return Costs({"title": "on paper"}, (line,), request, engine([PoolSpec(None, pages)], **facts))


def served(
    found: Costs, *requests: Request, replicas: int = 1, balancer: Balancer = round_robin, max_queue: int = 99
) -> Fleet:
    return simulate(requests, found, replicas, balancer, max_queue)


def written(found: Costs, folder: Path) -> Path:
    path = folder / "costs.json"
    path.write_text(json.dumps(to_json(found)))
    return path
