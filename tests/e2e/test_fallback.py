"""Without compiled kernels PyTorch serves, the log says so, and prompts score the same packed and alone."""

from pathlib import Path

import pytest
import torch

from model.loading import create
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from model.tokenizers.load import load_tokenizer
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from tests.e2e.conftest import Load
from tests.e2e.server import serving
from tests.e2e.without_server import serve
from tests.model.network.latent_models import logprobs, mistral4, save_native
from tests.model.network.oracles import TOKENS

PROMPT = [*range(100, 140)]
SCORED = SamplingParams(max_tokens=0, prompt_logprobs=0)
TEXT = "The water wheel turns slowly under the old stone bridge, and each bucket fills, rises and empties."


@pytest.fixture
def runner(load_short: Load, monkeypatch: pytest.MonkeyPatch) -> ModelRunner:
    monkeypatch.setenv("NORIA_KERNELS", "torch")
    return load_short(dtype="bfloat16", max_step_tokens=512)


def test_it_is_served_and_named(short_model: Path, runner: ModelRunner) -> None:
    with serving(str(short_model), "--dtype", "bfloat16", NORIA_KERNELS="torch") as server:
        engine = server.http.get("/version").json()["engine"]
        expected = {"kernels": "torch", "quantize": "none", "attention": "sdpa"}
        assert {key: engine[key] for key in expected} == expected
        assert "kernels=torch" in server.log
        ask = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0, "logprobs": 0, "return_token_ids": True}
        (choice,) = server.http.post("/v1/completions", json=ask).json()["choices"]
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=0)
    ((token, logprob),) = serve(runner, [(PROMPT, params)])[0][0]
    assert choice["token_ids"] == [token]
    assert logprob is not None
    assert choice["logprobs"]["token_logprobs"] == [pytest.approx(logprob.logprob, abs=0.05)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_latent_attention_is_served(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch: the log probabilities are those of transformers."""
    monkeypatch.setenv("NORIA_KERNELS", "torch")
    model = mistral4()
    options = {"model": str(save_native(model, tmp_path)), "device": "cpu", "cache_memory": 2**22, "dtype": dtype}
    runner = create(lambda stage, done: None, **options)
    assert (runner.info.description["kernels"], runner.info.description["attention"]) == ("torch", "sdpa")
    expected = logprobs(model)[range(len(TOKENS) - 1), TOKENS[1:]]
    for max_step_tokens in (13, 512):
        (found,) = scores(runner, [TOKENS], max_step_tokens)
        if dtype == "float32":
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
        assert (found - expected).abs().mean() < 0.2  # a rounded token may take other experts


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


def test_prompts_score_alike_packed_in_chunks_and_alone(short_model: Path, runner: ModelRunner) -> None:
    tokens = load_tokenizer(short_model).encode(TEXT * 2, add_bos=False, parse_control=False)
    prompts = [tokens[i : i + 10 + 3 * i] for i in range(6)]
    alone = [scores(runner, [prompt], 512)[0] for prompt in prompts]
    for together in (scores(runner, prompts, 512), scores(runner, prompts, 25)):
        assert (torch.cat(together) - torch.cat(alone)).abs().mean() < 0.05  # bfloat16 rounds by 0.02 on the average
