"""The defaults in a model's files are checked once when it is loaded, not with every request."""

from typing import Any

import pytest

from model.checkpoint.generation_config import GenerationDefaults
from model.errors import ModelError
from service.generation.request import ServedModel, longest_piece
from tests.fakes import VOCAB, IntegerTokenizer, make_info


def serve(ends: tuple[Any, ...] = (), **sampling: Any) -> ServedModel:
    tokenizer = IntegerTokenizer()
    defaults = GenerationDefaults(ends, sampling)
    return ServedModel(("fake",), tokenizer, None, defaults, longest_piece(tokenizer), make_info())


@pytest.mark.parametrize(
    ("ends", "sampling", "words"),
    [
        ((), {"temperature": 3.0}, ["temperature", "3.0", "2"]),
        ((), {"temperature": "hot"}, ["temperature", '"hot"']),
        ((), {"temperature": float("nan")}, ["temperature", "NaN"]),
        ((), {"top_k": 50.5}, ["top_k", "integer", "50.5"]),
        ((), {"top_k": True}, ["top_k", "true"]),
        ((), {"top_p": 1.1}, ["top_p", "1.0", "1.1"]),
        ((2, VOCAB), {}, ["eos_token_id", "256", "0..255"]),
        (("</s>",), {}, ["eos_token_id", '"</s>"']),
    ],
)
def test_bad_generation_defaults_are_one_line(
    ends: tuple[Any, ...], sampling: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        serve(ends, **sampling)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


def test_good_generation_defaults_pass() -> None:
    served = serve((2, VOCAB - 1), temperature=1, top_p=0.9, top_k=50, min_p=0.0, repetition_penalty=1.1)
    assert served.max_prompt_bytes == 5 * 128  # "<end>" is the longest token
