"""The fields of Anthropic's Messages API about thinking: whether, and how long."""

from typing import Literal

from pydantic import Field

from service.api.reasoning import MAX_BUDGET, ReasoningOptions
from service.schema.fields import Body, optional

FIELD = "thinking"
Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Disabled(Body):
    type: Literal["disabled"] = Field(description='"disabled": the model does not think.')


class Enabled(Body):
    """The model thinks, up to a budget."""

    type: Literal["enabled"] = Field(description='"enabled": the model thinks.')
    budget_tokens: int = Field(
        ge=1,
        le=MAX_BUDGET,
        description="The number of tokens after which the thought ends with its sentence. It is less than "
        "`max_tokens`.",
    )
    display: Literal["summarized", "omitted"] | None = optional(
        "omitted: the blocks of thoughts are empty. Default: summarized, which is the whole thought here."
    )


class Adaptive(Body):
    """The model decides whether it thinks."""

    type: Literal["adaptive"] = Field(description='"adaptive": the model decides. Without reasoning it does not think.')
    display: Literal["summarized", "omitted"] | None = optional("As with type enabled.")


ThinkingConfig = Disabled | Enabled | Adaptive


def options_of(config: Disabled | Enabled | Adaptive | None, effort: str | None) -> ReasoningOptions:
    """Return the reasoning that the fields `thinking` and `output_config.effort` request."""
    if isinstance(config, Disabled):
        return ReasoningOptions(False, field=FIELD)
    if isinstance(config, Enabled):
        return ReasoningOptions(True, effort, config.budget_tokens, field=FIELD)
    return ReasoningOptions(None, effort, field="output_config.effort" if effort else FIELD)
