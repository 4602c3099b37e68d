"""The reasoning of a chat request: variables for the chat format, marks in the answer, and the budget."""

from typing import Any

from model.chat.reasoning import EFFORT, EFFORTS, switched
from model.grammar.thinking import Thinking
from service.api.chat_request import ChatRequest
from service.generation.served import ServedModel
from service.generation.thinking import Phase, Reasoning
from service.http.errors import InvalidRequest
from service.schema.reasoning import EFFORT_BUDGETS, ReasoningOptions

TAIL_TOKENS = 16
"""Tokens at the end of a prompt in which its last mark may be."""


def check_reasoning(request: ChatRequest, served: ServedModel) -> None:
    """Raise InvalidRequest if the request asks a model without reasoning to reason."""
    asked = request.reasoning
    wants = asked.on or asked.budget or (asked.effort and not asked.hint)
    if served.reasoning is None and wants:
        value = asked.budget or asked.effort
        message = (
            f"{asked.field} asks for reasoning ({value}), and this model has none: leave the field out, or start the "
            "server with --reasoning-style if this model writes thoughts"
        )
        raise InvalidRequest(message, param=asked.field, code="no_reasoning")


def reasoning_variables(request: ChatRequest, served: ServedModel) -> dict[str, Any]:
    """The variables of the chat format that turn reasoning on or off. Those of the request come first."""
    if served.chat is None or served.reasoning is None:
        return dict(request.template.variables)
    asked, efforts = request.reasoning, served.chat.efforts
    effort = nearest(asked.effort, efforts) if asked.hint and asked.effort and efforts else asked.effort
    on = True if asked.on is None and effort is not None else asked.on
    return {**switched(served.chat.switches, efforts, on, effort), **request.template.variables}


def nearest(effort: str, efforts: tuple[str, ...]) -> str:
    """The effort that the model knows at the least distance, the stronger of two."""
    wanted = EFFORTS.index(effort)
    known = [name for name in efforts if name in EFFORTS]
    return min(known, key=lambda name: (abs(EFFORTS.index(name) - wanted), -EFFORTS.index(name)), default=effort)


def budget_of(asked: ReasoningOptions, served: ServedModel) -> int | None:
    """The limit for the tokens of the thought, None without."""
    if asked.budget is not None:
        return asked.budget
    switches = served.chat.switches if served.chat else frozenset()
    if asked.on is False:
        return None if switches else 0
    if asked.effort is not None and EFFORT not in switches:
        return EFFORT_BUDGETS.get(asked.effort, served.reasoning_budget)
    return served.reasoning_budget


def reasoning_of(request: ChatRequest, served: ServedModel, prompt: list[int]) -> Reasoning | None:
    """The marks of the thought in the answer to a prompt; None if the answer's text is all of it."""
    if served.reasoning is None or not request.reasoning.apart:
        return None
    return Reasoning.of(served.reasoning, _phase(request, served, prompt), served.tokenizer)


def _phase(request: ChatRequest, served: ServedModel, prompt: list[int]) -> Phase:
    """Where the prompt ends: templates may open the thought, or write an empty one."""
    marks = served.reasoning
    assert marks is not None
    text = served.tokenizer.decode(prompt[-TAIL_TOKENS:], keep_control=True).rstrip()
    if text.endswith(marks.opening):
        return "inside"
    if text.endswith(marks.closing):
        return "after"
    if not request.template.continue_final_message:
        return "before"
    content = request.messages[-1]["content"] if served.tokenizer.control.get(marks.opening) is None else ""
    return "inside" if content.rfind(marks.opening) > content.rfind(marks.closing) else "after"


def with_thought(
    reasoning: Reasoning | None, request: ChatRequest, served: ServedModel, grammar: str | None
) -> str | None:
    """The grammar of an answer that may begin with a thought; `grammar` is that of its text."""
    if reasoning is None or reasoning.phase == "after":
        return grammar
    budget = budget_of(request.reasoning, served)
    if budget is None and grammar is None:
        return None
    if not served.defaults.eos_token_ids:
        message = f"{request.reasoning.field} with a budget needs a model with an end token, and this one has none"
        raise InvalidRequest(message, param=request.reasoning.field)
    marks = reasoning.marks
    return Thinking(marks.opening, marks.closing, reasoning.phase, budget, grammar).to_json()
