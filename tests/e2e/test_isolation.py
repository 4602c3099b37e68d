"""--cache-isolation key on a real server: another key computes the prompt itself, and gets the same bits."""

from pathlib import Path
from typing import Any

from tests.e2e.server import serving

PROMPT = "The wheel turns in the river and lifts the water to the field. " * 12


def test_another_key_computes_the_prompt_itself_and_gets_the_same_bits(short_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first\nsecond\n")
    with serving(str(short_model), "--api-key-file", str(file)) as server:

        def ask(key: str) -> tuple[Any, int]:
            body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 5}
            reply = server.http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}).json()
            return reply["choices"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

        (computed, none), (other, other_none), (reused, some) = ask("first"), ask("second"), ask("first")
        assert (none, other_none) == (0, 0)
        assert some > 100
        assert computed == other == reused
