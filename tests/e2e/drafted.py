"""Requests of every kind, their answers with drafts, and those of each alone without."""

import random
from dataclasses import replace
from typing import Any

from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from service.structured.constraint import json_constraint
from tests.e2e.without_server import Answer, answers_to

FORM = json_constraint(
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "x"
).serialized()
ENDS = (2, 0)


def some_request(rng: random.Random, number: int) -> Submit:
    """Greedy or sampled, with penalties, log probabilities, a form, an adapter, one of two choices."""
    text = [rng.randrange(3, 49000) for _ in range(rng.randrange(2, 20))]
    about: dict[str, Any] = {"temperature": rng.choice((0.0, 0.3, 0.8, 1.5)), "seed": rng.randrange(9)}
    about |= rng.choice(({}, {"top_p": 0.8}, {"top_k": 20}, {"repetition_penalty": 1.2, "frequency_penalty": 0.3}))
    about |= rng.choice(({}, {}, {"logprobs": 2}, {"grammar": FORM, "stop_token_ids": ENDS}))
    about |= {"max_tokens": rng.randrange(1, 40), "prompt_lookup_num_tokens": rng.choice((None, 0, 8))}
    text *= rng.choice((1, 1, 3))
    return Submit(number, text, SamplingParams(**about), choice=rng.randrange(2), adapter=rng.choice((0, 0, 1)))


def served(runner: ModelRunner, requests: list[Submit], own: int, **limits: Any) -> tuple[list[Answer], Scheduler]:
    info = replace(runner.info, own_draft_tokens=own, **limits)
    scheduler = Scheduler(info, max_sequences=16, max_step_tokens=64)
    for rows in (2, 24) * 20:  # a step costs much, a row and a pass little: drafts pay
        scheduler.prompts.cost.note(rows, 0, 0.0, 1.0 + 0.001 * rows)
    scheduler.prompts.cost.note_passes(1, 0.01)
    return answers_to(scheduler, runner, requests), scheduler


def without_drafts(runner: ModelRunner, requests: list[Submit]) -> list[Answer]:
    """Each alone."""
    plain = [replace(item, params=replace(item.params, prompt_lookup_num_tokens=0)) for item in requests]
    return [served(runner, [replace(item, id=0)], 0)[0][0] for item in plain]
