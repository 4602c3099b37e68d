"""Request fields for reasoning, and what they ask of the model."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MAX_BUDGET = 2**31 - 1
EFFORT_BUDGETS: Mapping[str, int] = MappingProxyType({"minimal": 1024, "low": 4096, "medium": 16384})
"""The budget in tokens of an effort, for a model that does not know efforts. Higher efforts have no limit."""


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """What a request asks of the model's reasoning.

    `on`: think, or do not; None leaves it to the model. `effort` is from "minimal" to "max"; as a `hint` it may be
    changed to the nearest that the model knows, and means nothing to a model without reasoning. `budget` is the limit
    for the tokens of the thought. `apart`: the thought is no part of the text. `field` is the client's name of the
    field, for errors.
    """

    on: bool | None = None
    effort: str | None = None
    budget: int | None = None
    apart: bool = True
    hint: bool = False
    field: str = dataclasses.field(default="reasoning_effort", compare=False)

    @classmethod
    def of_effort(
        cls, effort: str | None, field: str, *, budget: int | None = None, hint: bool = False
    ) -> "ReasoningOptions":
        """The options of a field with an effort, in which "none" means no reasoning."""
        on = None if effort is None else effort != "none"
        return cls(on, effort if on else None, budget, hint=hint and bool(on), field=field)
