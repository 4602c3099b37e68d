"""The canary: the same question to each model every minute. Where bits are promised, other ones are a fault."""

import asyncio
import logging
from collections.abc import Iterable

from model.sampling_params import SamplingParams
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.hosting.hosted import HostedModel

log = logging.getLogger("noria.canary")

SECONDS = 60.0
PROMPT, PARAMS = [*range(100, 148)], SamplingParams(temperature=0.0, max_tokens=8, logprobs=4)


async def ask_forever(models: Iterable[HostedModel]) -> None:
    """Compare tokens and log probabilities with the first answer of the same model, and count, until cancelled.

    A salt keeps the cache out. A late answer, or none, says nothing of bits. A model that promises none is left out.
    """
    known: dict[str, object] = {}
    n_sent = 0
    while True:
        for model in models:
            if not (served := model.admission.model) or not served.info.description.get("arithmetic"):
                continue
            n_sent += 1
            try:
                async with asyncio.timeout(SECONDS):
                    updates = [it async for it in model.client.submit(PROMPT, PARAMS, cache_salt=f"canary {n_sent}")]
            except (EngineUnavailable, EngineDied, TimeoutError):
                continue
            found = [token for it in updates for token in it.tokens], [one for it in updates for one in it.logprobs]
            right = (
                updates[-1].finish != "error" and known.setdefault(f"{model.name} {served.fingerprint}", found) == found
            )
            model.metrics.observe_canary(right)
            if not right:
                log.error("the canary got other bits than before", extra={"fields": {"model": model.name}})
        await asyncio.sleep(SECONDS)
