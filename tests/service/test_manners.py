"""What answers say besides the text: headers, timings, usage in every chunk, the fingerprint."""

import re

from model.config import GenerationDefaults
from service.api.models import card
from service.served import ServedModel, fingerprint
from tests.fakes import IntegerTokenizer, make_info
from tests.service.live import Live

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "twelve chars"


def test_timings_of_a_whole_answer(live: Live) -> None:
    said = live.complete(prompt=PROMPT, max_tokens=20, n=2)
    timings = said["timings"]
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (len(PROMPT), 0, 40)
    assert timings["prompt_ms"] > 0
    assert timings["predicted_per_second"] > 0
    again = live.complete(prompt="x" * 40, max_tokens=1)["timings"]
    assert again["prompt_n"] + again["cache_n"] == 40
    nothing_drawn = live.complete(prompt=PROMPT, max_tokens=0, echo=True)["timings"]
    assert (nothing_drawn["predicted_n"], nothing_drawn["predicted_ms"]) == (0, 0)


def test_only_the_last_chunk_of_a_stream_has_timings(live: Live) -> None:
    for options in ({}, {"stream_options": {"include_usage": True}}):
        body = {"prompt": PROMPT, "max_tokens": 5, "n": 2, **options}
        chunks = live.events(COMPLETIONS, body)
        assert ["timings" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1]["timings"]["predicted_n"] == 10


def test_usage_in_every_chunk(live: Live) -> None:
    for path, prompt in ((COMPLETIONS, {"prompt": "hi"}), (CHAT, {"messages": [{"role": "user", "content": "hi"}]})):
        body = {**prompt, "max_tokens": 5, "stream_options": {"continuous_usage_stats": True}}
        counts = [chunk["usage"]["completion_tokens"] for chunk in live.events(path, body)]
        assert counts == sorted(counts)
        assert counts[-1] == 5


def test_headers(live: Live) -> None:
    for body in ({}, {"stream": True}):
        response = live.post(COMPLETIONS, {"prompt": "hi", **body}, headers={"x-request-id": "mine"})
        assert response.headers["x-request-id"] == "mine"
        assert float(response.headers["x-queue-ms"]) >= 0
    assert "x-queue-ms" not in live.http.get("/v1/models").headers


def test_the_fingerprint_is_that_of_the_server(live: Live) -> None:
    shown = live.http.get("/version").json()["fingerprint"]
    assert re.fullmatch(r"noria-\S+-none-[0-9a-f]{8}", shown)
    assert live.complete(prompt="hi")["system_fingerprint"] == shown
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert {chunk["system_fingerprint"] for chunk in live.events(CHAT, body)} == {shown}


def test_the_fingerprint_changes_with_what_answers_depend_on() -> None:
    info = make_info()
    other = make_info(max_model_len=64)
    assert fingerprint("a", info) == fingerprint("a", make_info())
    assert len({fingerprint("a", info), fingerprint("b", info), fingerprint("a", other)}) == 3


def test_a_models_card_says_how_it_is_run() -> None:
    info = make_info(pools=((8, 64),))
    info.description["quantize"] = "int8"
    served = ServedModel(("fake",), IntegerTokenizer(), None, GenerationDefaults(), 1, info)
    shown = card(served, "fake")
    assert (shown["window"], shown["quantization"], shown["parent"], shown["adapters"]) == (8, "int8", None, [])
    mixed = make_info(pools=((8, 64), (None, 64)))
    assert card(ServedModel(("fake",), IntegerTokenizer(), None, GenerationDefaults(), 1, mixed), "fake")["window"] == [
        8,
        None,
    ]
