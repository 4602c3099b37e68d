"""The embedded model without compiled kernels. PyTorch serves it, logs this, and answers the same packed and alone."""

from pathlib import Path

import pytest
import torch

from model.loading import create
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from model.tokenizers.load import load_tokenizer
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from tests.e2e.server import MODEL, serving

SCORED = SamplingParams(max_tokens=0, prompt_logprobs=0)
TEXT = "The water wheel turns slowly under the old stone bridge, and each bucket fills, rises and empties."


def test_it_is_served_and_named() -> None:
    with serving("--dtype", "bfloat16", NORIA_KERNELS="torch") as server:
        engine = server.http.get("/version").json()["engine"]
        assert {key: engine[key] for key in ("kernels", "quantize", "attention")} == {
            "kernels": "torch",
            "quantize": "none",
            "attention": "sdpa",
        }
        assert "kernels=torch" in server.log
        answer = server.openai.completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0
        )
        assert "Paris" in answer.choices[0].text


def scores(runner: ModelRunner, prompts: list[list[int]], max_step_tokens: int) -> list[torch.Tensor]:
    """Logprobs of each prompt's tokens, all served together."""
    scheduler = Scheduler(runner.info, max_sequences=12, max_step_tokens=max_step_tokens)
    found: list[list[float]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        scheduler.submit(Submit(number, prompt, SCORED))
    while scheduler.has_work:
        for update in scheduler.commit(runner.step(scheduler.plan())):
            found[update.id] += [item.logprob for item in update.prompt_logprobs]
    return [torch.tensor(values) for values in found]


def test_prompts_score_alike_packed_in_chunks_and_alone(short_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORIA_KERNELS", "torch")
    runner = create(
        lambda stage, done: None,
        model=str(short_model),
        device="cpu",
        dtype="bfloat16",
        max_model_len=128,
        max_step_tokens=512,
        cache_memory=64 * 2**20,
    )
    tokens = load_tokenizer(short_model).encode(TEXT * 2, add_bos=False, parse_control=False)
    prompts = [tokens[i : i + 10 + 3 * i] for i in range(6)]
    alone = [scores(runner, [prompt], 512)[0] for prompt in prompts]
    for together in (scores(runner, prompts, 512), scores(runner, prompts, 25)):
        assert (torch.cat(together) - torch.cat(alone)).abs().mean() < 0.05  # bfloat16 rounds by 0.02 on the average
