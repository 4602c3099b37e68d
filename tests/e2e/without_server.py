"""Requests to a runner behind a scheduler, without a server."""

from dataclasses import replace

from model.batch import TokenLogprob
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler

Answer = list[tuple[int, TokenLogprob | None]]
Request = tuple[list[int], SamplingParams]
"""A prompt and its parameters."""


def serve(runner: ModelRunner, requests: list[Request], max_step_tokens: int = 512) -> tuple[list[Answer], Scheduler]:
    """The answers of requests that are served together, and the scheduler afterwards."""
    scheduler = Scheduler(runner.info, max_sequences=min(64, max_step_tokens), max_step_tokens=max_step_tokens)
    return serve_with(scheduler, runner, requests), scheduler


def serve_with(scheduler: Scheduler, runner: ModelRunner, requests: list[Request]) -> list[Answer]:
    return answers_to(scheduler, runner, [Submit(n, tokens, params) for n, (tokens, params) in enumerate(requests)])


def answers_to(scheduler: Scheduler, runner: ModelRunner, requests: list[Submit]) -> list[Answer]:
    """The answers of requests with the ids 0, 1, 2, ...

    One that the scheduler has preempted after its images or audio is submitted again, as the service does it.
    """
    answers: list[Answer] = [[] for _ in requests]
    for request in requests:
        scheduler.submit(request)
    while scheduler.has_work:
        batch = scheduler.plan()
        for update in scheduler.take_returned():
            output = [token for token, _ in answers[update.id]]
            scheduler.submit(replace(requests[update.id], output=output))
        for update in scheduler.commit(runner.step(batch)) if batch else ():
            answers[update.id] += zip(update.tokens, update.logprobs or [None] * len(update.tokens), strict=True)
    scheduler.check_idle()
    return answers
