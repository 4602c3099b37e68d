"""The budget of memory that the models of a server share: which of them have a part of it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from model.errors import MemoryLack
from service.errors.errors import Unavailable
from service.generation.startup import in_thread
from service.hosting.hosted import RETRY_SECONDS, HostedModel
from service.hosting.memory import Need, budget_of
from service.settings import Settings

if TYPE_CHECKING:  # they have the budget
    from service.hosting.models import HostedModels

NeedOf = Callable[[Settings, int, int], Need]
"""Plans a model that shares the budget, in bytes, with so many models. Raises NoriaError if it cannot fit."""


class Budget:
    """The memory that models reserve by their plans, which `need_of` makes. `changed` is set when one may have gone."""

    def __init__(self, settings: Settings, need_of: NeedOf, models: "HostedModels", changed: asyncio.Event) -> None:
        self._settings = settings
        self._need_of = need_of
        self._models = models
        self._changed = changed
        self.total: int | None = None  # bytes, once a model was planned

    async def fits(self, model: HostedModel) -> bool:
        """Return whether there is memory for a model beside the others. True if it has no plan: its load says why."""
        try:
            need, total = await self._plan(model)
        except Exception:
            return True
        return self._held() - model.reserved + need.n_bytes <= total

    async def reserve(self, model: HostedModel) -> bool:
        """Reserve the memory of a model. Idle models are unloaded for it, the one that was used longest ago first.

        It waits while all idle models together do not have enough. False: nobody waits for the model any more. Raises
        Unavailable if the memory can never be enough.
        """
        need, total = await self._plan(model, anew=True)
        while (missing := self._held() + need.n_bytes - total) > 0:
            if model.removed or not model.n_callers:
                return False
            others = [other for other in self._models if other is not model and other.reserved]
            pinned = sum(other.reserved for other in others if other.entry.pinned)
            if need.n_bytes + pinned > total:
                what = f"{need.n_bytes:,} bytes, and pinned models leave {total - pinned:,} of --memory-budget"
                raise Unavailable(f"the model {model.name} needs {what}", "model_does_not_fit", RETRY_SECONDS)
            idle = [other for other in others if other.can_go]
            self._changed.clear()
            if sum(other.reserved for other in idle) >= missing:
                await self._models.unload(min(idle, key=lambda other: other.last_used), "memory")
            else:
                model.waits_for_memory = True
                model.client.note("waiting for memory", 0.0)
                await self._changed.wait()
        model.reserve(need.n_bytes)
        model.waits_for_memory = False
        return True

    def lack(self, model: HostedModel) -> str:
        """Say why a model waits for memory. It names no other model, because the client's key may not use it."""
        pinned = sum(other.reserved for other in self._models.holders if other.entry.pinned)
        need = 0 if model.need is None else model.need.n_bytes
        held = f"models in use hold {self._held() - pinned:,} bytes, and pinned ones {pinned:,}"
        return f"it waits for memory: it needs {need:,} bytes of --memory-budget {self.total:,}; {held}"

    async def _plan(self, model: HostedModel, *, anew: bool = False) -> tuple[Need, int]:
        """Return what a model needs by its plan, and the whole budget in bytes. Raises Unavailable if it cannot fit.

        Its files may change between two loads: `anew` reads them again.
        """
        if self.total is None:
            self.total = await in_thread(lambda: budget_of(self._settings))
        total = self.total
        if anew or model.need is None:
            settings, n_models = model.entry.settings, len([*self._models])
            try:
                model.need = await in_thread(lambda: self._need_of(settings, total, n_models))
            except MemoryLack as error:
                raise Unavailable(str(error), "model_does_not_fit", RETRY_SECONDS) from error
        assert model.need is not None, "it has just been planned"
        return model.need, total

    def _held(self) -> int:
        return sum(model.reserved for model in self._models.holders)
