"""The internal chat request, which all chat APIs share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from service.errors.errors import InvalidRequest
from service.schema.conversation import TemplateOptions
from service.schema.fields import MAX_ITEMS
from service.schema.generation import RequestOptions
from service.schema.reasoning import ReasoningOptions
from service.schema.sampling import SamplingBody
from service.schema.tools import MAX_CALLS, AllowedCalls
from service.structured.constraint import Constraint

Json = dict[str, Any]

NO_CALLS, DEFAULT_TEMPLATE, DEFAULT_OPTIONS = AllowedCalls(), TemplateOptions(), RequestOptions()
DEFAULT_REASONING = ReasoningOptions()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request. The body of each chat API builds one, and `orders.order_chat` makes its order.

    `messages` are as `ChatFormat.encode` takes them. `max_tokens` None means what the prompt leaves of the context.
    `logprobs` is the number of alternatives for each token (None: no logprobs). `messages_field` and `max_tokens_field`
    are the client's names of these fields, for errors. Raises InvalidRequest.
    """

    messages: Sequence[Json]
    calls: AllowedCalls = NO_CALLS
    template: TemplateOptions = DEFAULT_TEMPLATE
    constraint: Constraint | None = None
    sampling: SamplingBody = field(default_factory=SamplingBody)
    max_tokens: int | None = None
    n: int = 1
    logprobs: int | None = None
    options: RequestOptions = DEFAULT_OPTIONS
    reasoning: ReasoningOptions = DEFAULT_REASONING
    messages_field: str = "messages"
    max_tokens_field: str = "max_tokens"

    def __post_init__(self) -> None:
        if len(self.messages) > MAX_ITEMS:
            self._refuse(f"makes {len(self.messages)} messages of a conversation, the limit is {MAX_ITEMS}")
        n_calls = max((len(message.get("tool_calls", ())) for message in self.messages), default=0)
        if n_calls > MAX_CALLS:
            self._refuse(f"has {n_calls} calls in one message of the assistant, the limit is {MAX_CALLS}")
        if self.template.continue_final_message and self.messages[-1].get("tool_calls"):
            self._refuse("ends with a message that calls functions: send their results, no answer can continue it")

    def _refuse(self, problem: str) -> None:
        raise InvalidRequest(f"{self.messages_field} {problem}", param=self.messages_field)
