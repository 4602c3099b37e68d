"""The chat format of Mistral's tokenizer files, by mistral-common."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from model.chat.conversation import NOTHING, Message, checked
from model.chat.media import MEDIA_ROLES, AudioTokens, ImageTokens, check_media
from model.chat.mistral_messages import CALLS_OR_TEXT, fitted
from model.chat.order import texts_beside_calls
from model.chat.reasoning import EFFORT, PARTS, check_effort, has_tokens, with_thought
from model.chat.schema import FIELD, SCHEMA, response_format
from model.errors import ModelError, ParameterError, one_line, quoted
from model.tokenizers.base import Tokenizer

CALL_STYLES: Mapping[str, str | None] = MappingProxyType(
    {
        "v1": None,
        "v2": "mistral-v3",  # up to v3 a message has either text or calls
        "v3": "mistral-v3",
        "v7": "mistral",
        "v11": "mistral-v11",
        "v13": "mistral-args",
        "v15": "mistral-args",
    }
)
"""The style of tool calls by the version of the tokenizer."""

CALL = MappingProxyType({"id": "abcdefgh0", "type": "function", "function": {"name": "f", "arguments": {}}})
HELLO = MappingProxyType({"role": "user", "content": "Hello"})
TRIALS: Mapping[str, Sequence[Message]] = MappingProxyType(
    {
        "user": (HELLO,),
        "tool": (
            HELLO,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "Hello", "tool_call_id": CALL["id"]},
        ),
    }
)
"""A conversation that ends with a message of each role that may have images."""


class MistralChat:
    """mistral-common's encoding, of the version that the tokenizer file has.

    `efforts` are the values that the file allows for the variable `reasoning_effort`; versions before v15 have none.
    From v15 on a file may say that the prompt has the schema of the answer, which must be one of Draft 7.
    Raises ModelError for a file that mistral-common cannot read, for a version that is not in `CALL_STYLES`, and for
    control tokens that are not those of `tokenizer`.
    """

    may_strip = False
    source: str | None = None

    def __init__(self, file: Path, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        found = _load(file)
        inner = found.instruct_tokenizer.tokenizer
        audio = getattr(inner, "audio", None)  # a Tekken file may have it
        media = _Media(ImageTokens.of(tokenizer), AudioTokens.of(tokenizer) if audio else None)
        self._format = _writing(found, media) if media.by_kind else found
        self._version: str = inner.version.value
        if self._version not in CALL_STYLES:
            known = ", ".join(CALL_STYLES)
            raise ModelError(f"{file.name} has the tokenizer version {self._version}; Noria supports {known}")
        self.call_style = CALL_STYLES[self._version]
        settings = _settings(inner, file.name)
        self.efforts = _efforts(settings)
        self.tells_schema = settings is not None and settings.json_schema is not None
        self.reasoning_style = "tokens" if has_tokens(tokenizer) else None
        self.switches: frozenset[str] = frozenset({EFFORT} if self.efforts else ())
        _check_same(inner, tokenizer, file.name)
        roles = {kind: self._roles_of(kind, ids.placeholder) for kind, ids in media.by_kind.items()}
        self.media_roles: Mapping[str, frozenset[str]] = {kind: some for kind, some in roles.items() if some}

    def encode(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = NOTHING,
        tools: Sequence[Any] | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> list[int]:
        chat = checked(messages)
        check_media(chat, self.media_roles)
        fit = fitted(chat, self._version, thinks=self.reasoning_style is not None)
        known = [dict(with_thought(message, "chunks" if self.reasoning_style else None)) for message in fit]
        if (continue_final_message or not add_generation_prompt) and known[-1]["role"] == "assistant":
            known[-1]["prefix"] = True
        effort = self._checked_effort(variables)
        told = {} if schema is None or not self.tells_schema else {FIELD: response_format(_checked_schema(schema))}
        return self._encode({"messages": known, "tools": tools, EFFORT: effort, **told})

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        return self._tokenizer.decode(self.encode(messages, **options), keep_control=True)

    def left_out(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> list[int]:
        return texts_beside_calls(messages, merges=True) if self._version in CALLS_OR_TEXT else []

    def _encode(self, body: Mapping[str, Any]) -> list[int]:
        from mistral_common.exceptions import (
            InvalidToolException,
            InvalidToolSchemaException,
            MistralCommonException,
        )
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        try:
            request = ChatCompletionRequest.model_validate(body)
            tokens: list[int] = self._format.encode_chat_completion(request).tokens
            return tokens
        except (InvalidToolException, InvalidToolSchemaException) as error:
            raise ParameterError("tools", f"the model's chat format refuses these tools: {one_line(error)}") from error
        except (MistralCommonException, ValueError, RecursionError) as error:
            raise ParameterError(
                "messages", f"the model's chat format refuses these messages: {one_line(error)}"
            ) from error

    def _roles_of(self, kind: str, token: int) -> frozenset[str]:
        """Return the roles in whose messages an image, or audio, becomes one `token`."""
        return frozenset(role for role in MEDIA_ROLES[kind] if self._writes(kind, role, token))

    def _writes(self, kind: str, role: str, token: int) -> bool:
        parts = [{"type": "text", "text": "Hello"}, {"type": kind}]
        *others, last = TRIALS[role]
        try:
            messages = fitted([*others, {**last, PARTS: parts}], self._version, thinks=False)
            ids = self._encode({"messages": [with_thought(known, None) for known in messages]})
        except ParameterError:
            return False
        return ids.count(token) == 1

    def _checked_effort(self, variables: Mapping[str, Any]) -> str | None:
        """Return the checked `reasoning_effort`, None for the file's default."""
        if unknown := [name for name in variables if name != EFFORT or not self.efforts]:
            known = f"{EFFORT} ({', '.join(self.efforts)})" if self.efforts else "none"
            raise ParameterError(
                EFFORT if unknown[0] == EFFORT else "chat_template_kwargs",
                f"chat_template_kwargs has {quoted(unknown[0])}, this model's tokenizer {self._version} knows: {known}",
            )
        effort = variables.get(EFFORT)
        check_effort(effort, self.efforts)
        return effort


class _Media(NamedTuple):
    """The control tokens of images and audio, for a tokenizer that has them."""

    images: ImageTokens | None
    audio: AudioTokens | None

    @property
    def by_kind(self) -> Mapping[str, ImageTokens | AudioTokens]:
        return {kind: ids for kind, ids in (("image", self.images), ("audio", self.audio)) if ids is not None}


def _load(file: Path) -> Any:
    from mistral_common.exceptions import MistralCommonException
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    problems = (MistralCommonException, ImportError, ValueError, TypeError, LookupError, AssertionError)
    try:
        return MistralTokenizer.from_file(file)
    except problems as error:
        raise ModelError(f"{file.name} cannot be read by mistral-common: {one_line(error)}") from error


def _writing(found: Any, media: _Media) -> Any:
    """Return a MistralTokenizer that writes one token for each image and two for each recording."""
    from mistral_common.protocol.instruct.normalize import get_normalizer
    from mistral_common.protocol.instruct.validator import ValidationMode, get_validator
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    inner = found.instruct_tokenizer.tokenizer
    encoders: dict[str, Any] = {}
    if media.images is not None:
        encoders["image_encoder"] = partial(_encode_image, media.images.placeholder)
    if media.audio is not None:
        encoders["audio_encoder"] = _AudioEncoder(inner.audio, media.audio)
    writer = type(found.instruct_tokenizer)(inner, **encoders)
    validator = get_validator(inner.version, mode=ValidationMode.test)
    return MistralTokenizer(writer, validator, get_normalizer(inner.version, inner.model_settings_builder))


def _encode_image(token: int, chunk: Any) -> Any:
    """Encode an image as one token, in place of mistral-common's encoder, which would decode the image."""
    import numpy as np
    from mistral_common.tokens.tokenizers.image import ImageEncoding

    return ImageEncoding([token], np.empty(0))


class _AudioEncoder:
    """Writes two tokens for a recording, in place of mistral-common's encoder, which would decode the audio."""

    def __init__(self, audio_config: Any, ids: AudioTokens) -> None:
        self.audio_config = audio_config  # mistral-common reads it
        self._tokens = [ids.begin, ids.placeholder]

    def __call__(self, chunk: Any) -> Any:
        import numpy as np
        from mistral_common.tokens.tokenizers.audio import Audio, AudioEncoding

        return AudioEncoding(self._tokens, Audio(np.empty(0), self.audio_config.sampling_rate, "wav"))


def _settings(inner: Any, name: str) -> Any:
    """Return the file's settings for the prompt; None for versions without them."""
    if not inner.version.supports_model_settings:
        return None
    if inner.model_settings_builder is None:
        raise ModelError(
            f"{name} has no model_settings_builder, which a tokenizer {inner.version.value} needs; download it again"
        )
    return inner.model_settings_builder


def _efforts(settings: Any) -> tuple[str, ...]:
    builder = settings and settings.reasoning_effort
    return () if builder is None else tuple(str(value) for value in builder.values)


def _checked_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema. Raises ParameterError if it is not one of Draft 7."""
    from mistral_common.utils.json_utils import validate_json_schema_by_draft7

    try:
        validate_json_schema_by_draft7(dict(schema))
    except (ValueError, RecursionError) as error:
        raise ParameterError(
            SCHEMA, f"the model's chat format takes JSON schemas of Draft 7: {one_line(error)}"
        ) from error
    return schema


def _check_same(inner: Any, tokenizer: Tokenizer, name: str) -> None:
    """Raise ModelError if the control tokens of the two files of a directory differ."""
    for token, index in tokenizer.control.items():
        if inner.is_special(token) and (other := inner.get_special_token(token)) != index:
            raise ModelError(
                f"{token} is token {other} in {name} and {index} in tokenizer.json: they are files of two models, "
                "remove the wrong one"
            )
