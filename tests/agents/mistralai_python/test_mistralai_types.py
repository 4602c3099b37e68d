"""The fields of mistralai's types, which the ordinary suite sends."""

import pytest
from mistralai.client.models import ChatCompletionStreamRequest, EmbeddingRequest, FIMCompletionStreamRequest

from tests.clients.typed import missing

KINDS = {
    "/v1/chat/completions": ChatCompletionStreamRequest,
    "/v1/fim/completions": FIMCompletionStreamRequest,
    "/v1/embeddings": EmbeddingRequest,
}


@pytest.mark.parametrize("path", KINDS)
def test_every_field_is_an_example(path: str) -> None:
    fields = KINDS[path].model_fields.items()
    assert not missing("mistral", path, {declared.alias or name for name, declared in fields})
