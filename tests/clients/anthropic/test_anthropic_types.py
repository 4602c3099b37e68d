"""The fields of anthropic's types, which the ordinary suite sends. `betas` becomes a header."""

from anthropic.types import message_create_params
from anthropic.types.beta import message_create_params as beta_create_params
from typed import missing
from typing_extensions import get_type_hints


def test_every_field_is_an_example() -> None:
    for kind in (message_create_params.MessageCreateParamsStreaming, beta_create_params.MessageCreateParamsStreaming):
        assert not missing("anthropic", "/v1/messages", {*get_type_hints(kind)} - {"betas"})
