"""What of a request's tokens can be judged before anything is computed."""

import pytest

from model.errors import ParameterError
from model.sampling_params import SamplingParams


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
def test_some_token_must_be_left_to_draw(params: dict[str, object], fits: bool) -> None:
    made = SamplingParams(**params)  # type: ignore[arg-type]
    if fits:
        made.check_ids(8)
        return
    with pytest.raises(ParameterError) as caught:
        made.check_ids(8)
    assert caught.value.param == "allowed_token_ids"
