"""Messages are equal before and after the wire."""

import json
from dataclasses import replace

import pytest

from model.batch import TokenLogprob
from model.media import ImageFormat, MediaSpan
from model.sampling_params import SamplingParams
from service.engine.mailbox import merge
from service.engine.messages import (
    Abort,
    AdapterLoaded,
    Admitted,
    Beat,
    Failed,
    LoadAdapter,
    Loading,
    LoadModel,
    PrefixMiss,
    Ready,
    Report,
    Stats,
    Stop,
    Submit,
    UnloadAdapter,
    Update,
    data_of,
    from_json,
    to_json,
)
from service.engine.picture import PoolPages
from tests.fakes import make_info

SCORED = TokenLogprob(7, -0.25, ((7, -0.25), (9, -2.0)))
ADMITTED = Admitted(4, 0.5, 2, PrefixMiss(2, "new"))
UPDATE = Update(3, (7, 8), (SCORED,), (SCORED, SCORED), "stop", ADMITTED, "why", 9, (0.25, -1.5), "fault")


@pytest.mark.parametrize(
    "message",
    [
        LoadModel({"model": "m", "dtype": "auto"}, 60.0),
        Submit(1, [1, 2], SamplingParams(stop=("a",), logit_bias=((3, -1.5),), stop_token_ids=(2,), logprobs=2), 5),
        Submit(2, [1], SamplingParams(allowed_token_ids=(3, 4), bad_words=((5,), (6, 7))), 0, -3, "salt", 128, "a.b"),
        Submit(3, [1] * 6, SamplingParams(), media=(MediaSpan(0, 2, 2, "d"),), adapter=2, inputs=bytes(range(256))),
        Abort(1),
        LoadAdapter(1, "/adapters/a"),
        UnloadAdapter(1),
        AdapterLoaded(1),
        AdapterLoaded(2, "no"),
        Stop(),
        Loading("loading weights", 0.25),
        Ready(make_info(pools=((None, 4), (16, 8)))),
        Ready(replace(make_info(), images=ImageFormat(14, 2, 1540, 3), media_tokens=9, max_adapters=4)),
        Failed("no"),
        Beat(),
        Beat(0.5, 2**30, 12.25),
        Report(
            (UPDATE, Update(4)),
            Stats(1, 2, 3, 4, 5, 6, (PoolPages(None, 4, 6, 1, 0, 2, 3), PoolPages(16, 4, 9, 0, 0, 0, 9))),
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_round_trip(message: object) -> None:
    assert from_json(json.loads(to_json(message)), data_of(message)) == message  # type: ignore[arg-type]


def test_merged_updates_keep_order_and_the_first_ones_facts() -> None:
    merged = merge(Update(3, (1,), admitted=ADMITTED), Update(3, (2, 3), finish="length"))
    assert merged == Update(3, (1, 2, 3), finish="length", admitted=ADMITTED)
    assert merge(Update(3, (1,)), Update(3, finish="error", fault="why")).fault == "why"
