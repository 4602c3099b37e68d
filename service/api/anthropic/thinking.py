"""The fields of Anthropic's Messages API about thinking: whether, how long, and which earlier thoughts stay."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from model.chat.reasoning import THOUGHT
from service.api.reasoning import MAX_BUDGET, ReasoningOptions
from service.schema.fields import Body, Items, Json, only, optional

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

    type: Literal["adaptive"] = Field(
        description='"adaptive": the model decides. A model without reasoning does not think.'
    )
    display: Literal["summarized", "omitted"] | None = optional("As with type enabled.")


ThinkingConfig = Disabled | Enabled | Adaptive


def options_of(config: Disabled | Enabled | Adaptive | None, effort: str | None) -> ReasoningOptions:
    """What the fields `thinking` and `output_config.effort` ask."""
    if isinstance(config, Disabled):
        return ReasoningOptions(False, field=FIELD)
    if isinstance(config, Enabled):
        return ReasoningOptions(True, effort, config.budget_tokens, field=FIELD)
    return ReasoningOptions(None, effort, field="output_config.effort" if effort else FIELD)


class KeepAll(Body):
    type: Literal["all"] = Field(description='"all".')


class KeepTurns(Body):
    type: Literal["thinking_turns"] = Field(description='"thinking_turns".')
    value: int = Field(ge=1, le=2**31 - 1, description="The number of the last turns with thoughts that keep them.")


class ClearThinking(Body):
    """Leave out thoughts of earlier turns. A turn is what the assistant says between two user messages with text, so a
    loop of calls and results is one turn.
    """

    type: Literal["clear_thinking_20251015"] = Field(description='"clear_thinking_20251015", the only type.')
    keep: Literal["all"] | KeepAll | KeepTurns | None = optional(
        "Which thoughts stay. Default: those of the last turn that has any."
    )

    def apply(self, messages: Sequence[Json]) -> list[Json]:
        """The messages without the thoughts that do not stay."""
        if self.keep == "all" or isinstance(self.keep, KeepAll):
            return [*messages]
        left = self.keep.value if isinstance(self.keep, KeepTurns) else 1
        kept: list[Json] = []
        thinks = False  # whether the turn has a thought
        for message in reversed(messages):
            if message["role"] == "user":
                left, thinks = left - thinks, False
            thinks = thinks or bool(message.get(THOUGHT))
            known = message if left > 0 else {key: value for key, value in message.items() if key != THOUGHT}
            kept.append(known)
        return kept[::-1]


class ContextManagement(Body):
    """Changes to earlier messages."""

    harmless = only()
    edits: Items[ClearThinking] | None = optional("The changes. Only thoughts can be left out.", max_length=1)
