"""The chat format of checkpoints in Mistral's native format, by mistral-common."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model.chat.conversation import NOTHING, Message, checked
from model.chat.reasoning import EFFORT, has_tokens, with_thought
from model.errors import ModelError, ParameterError, one_line
from model.tokenizers.base import Tokenizer

_CALLS_ALONE = ("v2", "v3")
"""Tokenizer versions whose messages have either content or tool calls."""
_NEW_CALLS = ("v11", "v13", "v15")
"""Tokenizer versions whose tool calls are a name and arguments, not a JSON list."""


class MistralChat:
    """mistral-common's encoding, of the version in the name of the tokenizer file."""

    may_strip = False

    def __init__(self, file: Path, tokenizer: Tokenizer) -> None:
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

        self._tokenizer = tokenizer
        try:
            self._format = MistralTokenizer.from_file(file)
        except (MistralCommonException, ImportError, ValueError) as error:
            raise ModelError(f"{file.name} cannot be read by mistral-common: {one_line(error)}") from error
        version = self._format.instruct_tokenizer.tokenizer.version.value
        styles = {"v1": None, **dict.fromkeys(_CALLS_ALONE, "mistral-v3"), **dict.fromkeys(_NEW_CALLS, "mistral-args")}
        self.call_style = styles.get(version, "mistral")
        self.efforts: tuple[str, ...] = ()
        self.reasoning_style = "tokens" if has_tokens(tokenizer) else None
        self.switches: frozenset[str] = frozenset({EFFORT} if self.efforts else ())

    def encode(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = NOTHING,
        tools: Sequence[Any] | None = None,
    ) -> list[int]:
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        if variables:
            raise ParameterError(
                "chat_template_kwargs", "chat_template_kwargs must be empty: this model has no chat template"
            )
        known: list[dict[str, Any]] = [
            {key: value for key, value in message.items() if key != "name"} for message in checked(messages)
        ]
        known = [dict(with_thought(message, "chunks" if self.reasoning_style else None)) for message in known]
        if (continue_final_message or not add_generation_prompt) and known[-1]["role"] == "assistant":
            known[-1]["prefix"] = True
        try:
            request = ChatCompletionRequest.model_validate({"messages": known, "tools": tools})
            return self._format.encode_chat_completion(request).tokens
        except (MistralCommonException, ValueError) as error:
            raise ParameterError(
                "messages", f"the model's chat format refuses these messages: {one_line(error)}"
            ) from error

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        return self._tokenizer.decode(self.encode(messages, **options), keep_control=True)
