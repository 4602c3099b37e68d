"""The fields of openai's types, which the ordinary suite sends."""

from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from typed import missing
from typing_extensions import get_type_hints

KINDS: dict[str, Any] = {
    "/v1/chat/completions": chat_create_params.CompletionCreateParamsStreaming,
    "/v1/responses": response_create_params.ResponseCreateParamsStreaming,
    "/v1/completions": completion_create_params.CompletionCreateParamsStreaming,
    "/v1/embeddings": embedding_create_params.EmbeddingCreateParams,
}


@pytest.mark.parametrize("path", KINDS)
def test_every_field_is_an_example(path: str) -> None:
    assert not missing("openai", path, get_type_hints(KINDS[path]))
