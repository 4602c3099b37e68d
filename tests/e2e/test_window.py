"""A prompt far longer than its window: pages stay bounded, and the answer is that of attention without any cache."""

import json
import random
import threading
import time
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import MistralConfig, MistralForCausalLM

from model.attention.sdpa import SdpaAttention
from tests.e2e.server import serving
from tests.gguf_models import extracted

WINDOW = 128
CHUNK = 128
N_PROMPT = 330
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "blk.": "model.layers.",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    **{f"attn_{part}.": f"self_attn.{part}_proj." for part in "qkv"},
    **{f"ffn_{part}.": f"mlp.{part}_proj." for part in ("gate", "up", "down")},
}
"""Parts of tensors' names in a GGUF and in `transformers`."""


def decoded(gguf: Path, config: MistralConfig) -> dict[str, torch.Tensor]:
    """The weights by the gguf package's own reader; rows of q and k from adjacent pairs to halves."""
    weights = {}
    for tensor in GGUFReader(gguf).tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        for part, heads in (("attn_q.", config.num_attention_heads), ("attn_k.", config.num_key_value_heads)):
            if part in tensor.name:
                values = values.unflatten(0, (heads, -1, 2)).swapaxes(1, 2).flatten(0, 2)
        name = tensor.name
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        weights[name] = values
    return weights


def oracle(gguf: Path, directory: Path, prompt: list[int], tokens: list[int]) -> list[float]:
    """Log probabilities by `transformers`: the same weights as a Mistral with a sliding window, and no cache."""
    fields = json.loads((directory / "config.json").read_text())
    fields = {key: value for key, value in fields.items() if key not in {"architectures", "model_type", "dtype"}}
    config = MistralConfig(**{**fields, "sliding_window": WINDOW, "attn_implementation": "sdpa"})
    model = MistralForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(decoded(gguf, config), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + tokens]), use_cache=False, logits_to_keep=len(tokens) + 1).logits
    logprobs = logits[0, :-1].log_softmax(-1)
    assert logprobs.argmax(-1).tolist() == tokens, "the served tokens are not the greedy ones"
    return logprobs.amax(-1).tolist()


def test_pages_are_bounded_by_the_window(short_model: Path, tmp_path: Path) -> None:
    choose = random.Random(7)
    prompt = [choose.randrange(100, 40_000) for _ in range(N_PROMPT)]
    ask = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1, "return_token_ids": True}

    flags = ("--sliding-window", str(WINDOW), "--dtype", "float32", "--max-step-tokens", str(CHUNK))
    with serving(str(short_model), *flags, paced=True) as server, server.slow():
        server.http.post("/v1/completions", json={"prompt": prompt[:1], "max_tokens": 1})  # the metrics know the pools
        held: list[float] = []
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                held.append(server.metric("noria_kv_pages", window=str(WINDOW), state="held"))
                time.sleep(0.01)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            answer = server.http.post("/v1/completions", json=ask).json()
        finally:
            done.set()
            watcher.join()

    # The metric shows the end of a step, when only the window of the next token is held.
    page_size = SdpaAttention.page_size
    bound = -(-(WINDOW - 1) // page_size) + 1
    assert 0 < max(held) <= bound < N_PROMPT / page_size
    (choice,) = answer["choices"]
    assert len(choice["token_ids"]) == 8
    expected = oracle(short_model, extracted(short_model, tmp_path), prompt, choice["token_ids"])
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-3)
