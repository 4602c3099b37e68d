"""The canary: the same question to each model every minute. Where bits are promised, other ones are a fault."""

import asyncio
import logging
from collections.abc import Iterable

from model.sampling_params import SamplingParams
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.hosting.hosted import HostedModel

log = logging.getLogger("noria.canary")

SECONDS = 60.0
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, logprobs=4)


class Canary:
    """Compares tokens and log probabilities with the first answer of the same model. A salt keeps the cache out."""

    def __init__(self, models: Iterable[HostedModel]) -> None:
        self._models = models
        self._known: dict[str, object] = {}
        self._n_sent = 0

    async def run(self) -> None:
        """Ask each minute until cancelled. A model whose arithmetic promises no bits is left out."""
        while True:
            for model in self._models:
                if (served := model.admission.model) and served.info.description.get("arithmetic"):
                    await self.ask(model, served.fingerprint, [*range(100, 148)])
            await asyncio.sleep(SECONDS)

    async def ask(self, model: HostedModel, fingerprint: str, prompt: list[int]) -> None:
        """Ask a model once, and count how it answers. A late answer, or none, says nothing of bits."""
        self._n_sent += 1
        try:
            async with asyncio.timeout(SECONDS):
                updates = [it async for it in model.client.submit(prompt, PARAMS, cache_salt=f"canary {self._n_sent}")]
        except (EngineUnavailable, EngineDied, TimeoutError):
            return
        found = [token for it in updates for token in it.tokens], [one for it in updates for one in it.logprobs]
        computed = updates[-1].finish != "error"
        right = computed and self._known.setdefault(f"{model.name} {fingerprint}", found) == found
        model.metrics.observe_canary(right)
        if not right:
            log.error("the canary got other bits than before", extra={"fields": {"model": model.name}})
