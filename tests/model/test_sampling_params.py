"""Checks of a request's token ids before any computation."""

import re
from pathlib import Path

import pytest

from model.errors import ParameterError
from model.sampling_params import PARAMETERS, SamplingParams


@pytest.mark.parametrize(
    ("params", "fits"),
    [
        ({"allowed_token_ids": (1, 2)}, True),
        ({"allowed_token_ids": (1, 8)}, False),
        ({"allowed_token_ids": (1, 2), "bad_words": ((1,), (3, 1))}, True),
        ({"allowed_token_ids": (1, 2), "bad_words": ((1,), (3, 2))}, False),
        ({"allowed_token_ids": (1, 2), "stop_token_ids": (1, 2)}, True),
        ({"allowed_token_ids": (1, 2), "stop_token_ids": (1, 2), "min_tokens": 1}, False),
        ({"stop_token_ids": tuple(range(8)), "min_tokens": 1}, False),
        ({"bad_words": tuple((token,) for token in range(8))}, False),
        ({"bad_words": tuple((token,) for token in range(7))}, True),
    ],
)
def test_some_token_must_be_left_to_sample(params: dict[str, object], fits: bool) -> None:
    made = SamplingParams(**params)  # type: ignore[arg-type]
    if fits:
        made.check_ids(8)
        return
    with pytest.raises(ParameterError) as caught:
        made.check_ids(8)
    assert caught.value.param == "allowed_token_ids"


def read_somewhere(name: str) -> bool:
    """Whether the code reads a parameter, beside its declaration and the fields of requests."""
    root = Path(__file__).parents[2]
    files = [path for room in ("model", "service") for path in (root / room).rglob("*.py")]
    others = [path for path in files if path.name != "sampling_params.py" and "schema" not in path.parts]
    return any(re.search(rf'params\.{name}\b|"{name}"', path.read_text()) for path in others)


def test_every_parameter_has_a_reader() -> None:
    """A parameter that nothing reads would be accepted and ignored."""
    assert [name for name in PARAMETERS if not read_somewhere(name)] == []
    assert not read_somewhere("an_" + "end")


def test_what_is_in_use_and_what_reads_the_output() -> None:
    assert SamplingParams(top_k=-1, temperature=1, min_p=0).used == frozenset()  # all neutral
    assert SamplingParams(top_k=3, min_tokens=1, logprobs=0).used == {"top_k", "min_tokens", "logprobs"}
    readers = {
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "repetition_penalty": 1.1,
        "bad_words": ((1,),),
        "grammar": "start: /a/",
        "prompt_lookup_num_tokens": 1,
    }
    for name, value in readers.items():
        assert not SamplingParams(**{name: value}).independent_of_output  # type: ignore[arg-type]
    others = SamplingParams(temperature=0.5, logit_bias=((1, 2.0),), min_tokens=2, stop_token_ids=(1,), logprobs=3)
    assert others.independent_of_output


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", True), ("temperature", 2.1), ("top_k", 1.0), ("min_tokens", None), ("top_k", -2)],
)
def test_a_value_outside_the_limits_or_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]
