"""Answers that repeat themselves: vLLM's field and words in every dialect, the server's default, and what turns it off.

The model recites the last user message, so that message decides what repeats.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from model.checkpoint.model_files import model_files
from model.checkpoint.resolve import EMBEDDED, resolve
from model.tokenizers.load import load_tokenizer
from service.engine.scheduling.repetition import Repetition
from service.settings import Settings
from tests.service.live import Live, running

FIELD = {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 3}
OFF = {"max_pattern_size": 0}
TEXT = "one ababababab"
CUT = "one ababab"
CHAT = "/v1/chat/completions"
DEFAULT = {"model": "recite", "repetition_detection": "4,1,3"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    with running(**DEFAULT) as live:
        yield live


@pytest.fixture(scope="module")
def plain() -> Iterator[Live]:
    with running(model="recite") as live:
        yield live


def said(live: Live, **fields: Any) -> tuple[str, str, str | int | None]:
    choice = live.chat(TEXT, max_tokens=len(TEXT), **fields)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]


def test_the_request_decides_and_else_the_server(plain: Live, guarded: Live) -> None:
    cut, whole = (CUT, "repetition", "repetition_detected"), (TEXT, "length", None)
    assert said(plain) == said(guarded, repetition_detection=OFF) == said(plain, repetition_detection={}) == whole
    assert said(guarded) == said(guarded, repetition_detection=None, temperature=0) == cut
    assert said(plain, repetition_detection=FIELD) == cut
    assert said(guarded, repetition_detection=FIELD | {"min_count": 5}) == (TEXT, "length", None)
    assert said(guarded, repetition_detection=FIELD | {"min_count": 4}) == (CUT + "ab", *cut[1:])


def test_an_end_that_the_client_leaves_to_something_else_has_no_default(guarded: Live) -> None:
    assert said(guarded, ignore_eos=True) == (TEXT, "length", None)
    assert said(guarded, ignore_eos=True, repetition_detection=FIELD)[1] == "repetition"
    assert said(guarded, min_tokens=12)[0] == TEXT[:12]
    schema = {"guided_regex": "(ab)*", "max_tokens": 20}
    assert guarded.chat(TEXT, **schema)["choices"][0]["finish_reason"] != "repetition"


def test_every_dialect_has_its_words(guarded: Live) -> None:
    message = [{"role": "user", "content": TEXT}]
    chunks = guarded.events(CHAT, {"messages": message})
    last = chunks[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("repetition", "repetition_detected")
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == CUT
    answer = guarded.post("/v1/messages", {"messages": message, "max_tokens": 50}).json()
    assert (answer["content"][0]["text"], answer["stop_reason"]) == (CUT, "end_turn")
    response = guarded.post("/v1/responses", {"input": TEXT}).json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "repetition"})
    assert response["output"][0]["content"][0]["text"] == CUT


def test_the_outcome_is_counted(guarded: Live) -> None:
    before = guarded.metric("noria_requests_total", outcome="repetition")
    said(guarded)
    assert guarded.metric("noria_requests_total", outcome="repetition") == before + 1


ORDINARY = {
    "a list of zeros": ", ".join("0" * 100),
    "rows of zeros": ("    [" + "0, " * 10 + "],\n") * 10,
    "separators": "-" * 1000 + "=-" * 60 + "." * 500,
    "an empty table": "|   |   |   |   |\n" * 25,
    "a box": ("|" + " " * 60 + "|\n") * 30,
    "laughter": "ha " * 100,
    "bytes": "00 " * 100,
    "placeholders": '<div class="card"><img src="image.jpg"><h3>Title</h3><p>Some text of the card.</p></div>\n' * 7,
}
LOOPS = ("the elegant venue of the beautiful and ", "| Roma | 1,312 |\n", "Premier Train Service\n")


def test_the_embedded_models_default_ends_loops_and_no_ordinary_text() -> None:
    assert Settings(model="org/name").read_repetition() is None
    assert Settings(repetition_detection="off").read_repetition() is None
    wanted = Settings(model=EMBEDDED).read_repetition()
    assert wanted is not None
    tokenizer = load_tokenizer(model_files(resolve(EMBEDDED)))

    def ends(text: str) -> bool:
        detection = Repetition(wanted)
        return any([*map(detection.observe, tokenizer.encode(text, add_bos=False, parse_control=False))])

    assert [name for name, text in ORDINARY.items() if ends(text)] == []
    assert [text for text in LOOPS if not ends(text * 100)] == []
