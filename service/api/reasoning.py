"""The reasoning of a chat request: variables for the chat format, marks in the answer, and the budget."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from model.chat.reasoning import EFFORT, EFFORTS, Marks, switched
from model.grammar.thinking import Thinking
from model.tokenizers.base import Tokenizer
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.generation.thinking import Phase, Reasoning

MAX_BUDGET = 2**31 - 1
EFFORT_BUDGETS: Mapping[str, int] = MappingProxyType({"minimal": 1024, "low": 4096, "medium": 16384})
"""The budget in tokens of an effort, for a model that does not know efforts. Higher efforts have no limit."""
TAIL_TOKENS = 16
"""Tokens at the end of a prompt in which its last mark may be."""


@dataclass(frozen=True, slots=True)
class ReasoningOptions:
    """Options of a request for the model's reasoning.

    `on`: think, or do not; None leaves it to the model. `effort` is from "minimal" to "max"; the model gets the nearest
    that it knows. `budget` is the limit for the tokens of the thought. `apart`: the thought is no part of the text.
    `field` is the client's name of the field, for errors and notices; `also` are the names of all such fields.
    """

    on: bool | None = None
    effort: str | None = None
    budget: int | None = None
    apart: bool = True
    field: str = dataclasses.field(default="reasoning_effort", compare=False)
    also: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @classmethod
    def of_effort(cls, effort: str | None, field: str, *, budget: int | None = None) -> "ReasoningOptions":
        """Return the options of a field with an effort, in which "none" means no reasoning."""
        on = None if effort is None else effort != "none"
        return cls(on, effort if on else None, budget, field=field)


def ignored_reasoning(options: ReasoningOptions, served: ServedModel) -> tuple[str, ...]:
    """Return the client's names of the fields that tell a model without reasoning to reason."""
    wants = options.on or options.effort or options.budget
    return tuple(dict.fromkeys((options.field, *options.also))) if served.reasoning is None and wants else ()


def reasoning_variables(options: ReasoningOptions, served: ServedModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the chat format that turn reasoning on or off. Those that are `given` take precedence."""
    if served.chat is None or served.reasoning is None:
        return dict(given)
    efforts = served.chat.efforts
    effort = nearest(options.effort, efforts) if options.effort and efforts else options.effort
    on = True if options.on is None and effort is not None else options.on
    return {**switched(served.chat.switches, efforts, on, effort), **given}


def nearest(effort: str, efforts: tuple[str, ...]) -> str:
    """Return the nearest effort that the model knows, the stronger of two. It is never "none"."""
    place = EFFORTS.index(effort)
    known = [name for name in efforts if name in EFFORTS and name != "none"]
    return min(known, key=lambda name: (abs(EFFORTS.index(name) - place), -EFFORTS.index(name)), default=effort)


def budget_of(options: ReasoningOptions, served: ServedModel) -> int | None:
    """Return the limit for the tokens of the thought; None: no limit."""
    if options.budget is not None:
        return options.budget
    switches = served.chat.switches if served.chat else frozenset()
    if options.on is False:
        return None if switches else 0
    if options.effort is not None and EFFORT not in switches:
        return EFFORT_BUDGETS.get(options.effort, served.reasoning_budget)
    return served.reasoning_budget


def reasoning_of(
    options: ReasoningOptions,
    served: ServedModel,
    prompt: list[int],
    last_words: str,
    *,
    continues: bool,
    constrained: bool,
) -> Reasoning | None:
    """Return the marks of the thought in the answer to a prompt. `last_words` are those of the last message.

    `continues`: the answer continues that message. `constrained`: it follows the client's grammar.
    None for a model without reasoning, and for structured output with the thought in its text: the client's grammar
    then holds from the first token, and leaves no place for a thought.
    """
    marks, apart = served.reasoning, options.apart
    if marks is None or (constrained and not apart):
        return None
    opening, closing = (served.tokenizer.control.get(mark) for mark in (marks.opening, marks.closing))
    if opening is None or closing is None:
        phase = _phase_of_text(marks, served, prompt, last_words.rstrip(), continues=continues)
    else:
        phase = _phase_of_tokens(prompt, opening, closing, served.tokenizer, continues=continues)
    return Reasoning.of(marks, phase, served.tokenizer, apart=apart, continues=continues)


def _phase_of_tokens(prompt: list[int], opening: int, closing: int, tokenizer: Tokenizer, *, continues: bool) -> Phase:
    """Return where a prompt ends whose marks are control tokens. No text of a message is such a token.

    The last mark says it where the answer continues a message. Otherwise that mark is of an earlier answer, unless
    nothing but white space follows it.
    """
    n_last = len(prompt) if continues else TAIL_TOKENS
    for index, token in enumerate(reversed(prompt[-n_last:])):
        if token in (opening, closing):
            return "inside" if token == opening else "after"
        if not continues and tokenizer.decode(prompt[len(prompt) - 1 - index :], keep_control=True).strip():
            return "before"
    return "after" if continues else "before"


def _phase_of_text(marks: Marks, served: ServedModel, prompt: list[int], content: str, *, continues: bool) -> Phase:
    """Return where a prompt ends whose marks are text. Templates may open the thought, or write an empty one.

    `content` is the last message. In a message that the answer continues, only a mark at the beginning opens a thought.
    """
    if continues:
        opened = content.lstrip().startswith(marks.opening) and marks.closing not in content
        return "inside" if opened else "after"
    text = served.tokenizer.decode(prompt[-TAIL_TOKENS:], keep_control=True).rstrip()
    mark = next((mark for mark in (marks.opening, marks.closing) if text.endswith(mark)), None)
    quoted = mark is not None and len(content) > len(mark) and text.endswith(content[-len(text) :])
    if mark is None or quoted:
        return "before"
    return "inside" if mark == marks.opening else "after"


def with_thought(
    reasoning: Reasoning | None, options: ReasoningOptions, served: ServedModel, grammar: str | None
) -> str | None:
    """Return the grammar of an answer that may begin with a thought; `grammar` is that of its text."""
    if reasoning is None:
        return grammar
    budget = budget_of(options, served)
    over = reasoning.phase == "after"
    # after a thought only a control token could open another one, and no client's grammar allows it
    if over and (reasoning.opening is None or grammar is not None):
        return grammar
    if budget is None and (grammar is None or over):
        return grammar
    if not served.defaults.eos_token_ids:
        message = f"{options.field} with a budget needs a model with an end token, and this one has none"
        raise InvalidRequest(message, param=options.field)
    marks = reasoning.marks
    phase: Literal["before", "inside", "answer"] = "answer" if reasoning.phase == "after" else reasoning.phase
    return Thinking(marks.opening, marks.closing, phase, budget, grammar).to_json()
