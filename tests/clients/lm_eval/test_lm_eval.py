"""EleutherAI's harness, `local-completions`, on tasks made here.

The oracle of every score forces one token at a time with `allowed_token_ids`. The logprobs of these tokens come from
sampling, not from scoring a prompt.
"""

import json
import os
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import lm_eval
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

URL = os.environ["NORIA_URL"] + "/v1/completions"
MODEL_DIR = os.environ["NORIA_MODEL_DIR"]
TOKENIZER = AutoTokenizer.from_pretrained(MODEL_DIR)
QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "Rome", "a small green apple"], "answer": 0},
    {"question": "Two plus two equals", "choices": ["seven", "four"], "answer": 1},
    {"question": "A dog says", "choices": ["meow, meow", "woof", "moo"], "answer": 1},
    {"question": "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\nHello", "choices": ["!"], "answer": 0},
]
NAMES = ("tokens", "token_logprobs", "top_logprobs")
TASKS = {
    "choose": """
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: answer
target_delimiter: " "
metric_list: [{metric: acc}]
""",
    "continue": """
output_type: generate_until
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["."], max_gen_toks: 12, temperature: 0.0}
metric_list: [{metric: exact_match}]
""",
    "roll": """
output_type: loglikelihood_rolling
doc_to_target: question
metric_list: [{metric: word_perplexity}]
""",
}


def post(**body: Any) -> dict[str, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(URL, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@cache
def forced(prompt: tuple[int, ...], token: int) -> tuple[float, bool]:
    """The logprob of `token` after `prompt`, and whether it is the greedy one."""
    body = {"prompt": list(prompt), "max_tokens": 1, "temperature": 0, "logprobs": 1}
    scores = post(**body, allowed_token_ids=[token])["choices"][0]["logprobs"]
    greedy = post(**body, return_token_ids=True)["choices"][0]["token_ids"]
    return scores["token_logprobs"][0], greedy == [token]


def score(context: list[int], continuation: list[int]) -> tuple[float, bool]:
    steps = [forced((*context, *continuation[:n]), token) for n, token in enumerate(continuation)]
    return sum(logprob for logprob, _ in steps), all(greedy for _, greedy in steps)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


TOKENIZERS: dict[str, dict[str, str]] = {
    "huggingface": {"tokenizer_backend": "huggingface", "tokenizer": MODEL_DIR},
    "remote": {"tokenizer_backend": "remote"},  # the server's /tokenizer_info, /tokenize and /detokenize
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the harness, by task."""
    directory: Path = tmp_path_factory.mktemp("tasks")
    data = directory / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for name, specific in TASKS.items():
        common = f"""
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}, cache_dir: "{directory}/cache"}}
test_split: test
doc_to_text: {'""' if name == "roll" else "question"}
"""
        (directory / f"{name}.yaml").write_text(common + specific)
    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "smollm2-135m-instruct",
            "base_url": URL,
            **TOKENIZERS[request.param],
            "num_concurrent": 2,
            "batch_size": 3,
            "max_length": 2048,
        },
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(directory), include_defaults=False),
        bootstrap_iters=0,
    )


def test_choices_are_scored(results: dict[str, Any]) -> None:
    samples = sorted(results["samples"]["choose"], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(QUESTIONS)
    best = []
    for sample, question in zip(samples, QUESTIONS, strict=True):
        context = encode(question["question"])
        expected = [
            score(context, encode(f"{question['question']} {choice}")[len(context) :]) for choice in question["choices"]
        ]
        for found, (logprob, greedy) in zip(sample["filtered_resps"], expected, strict=True):
            assert float(found[0]) == pytest.approx(logprob, abs=1e-4)
            assert found[1] in (greedy, str(greedy))
        best.append(max(range(len(expected)), key=lambda n: expected[n][0]) == question["answer"])
    assert results["results"]["choose"]["acc,none"] == pytest.approx(sum(best) / len(best))


def test_texts_are_continued_to_a_stop(results: dict[str, Any]) -> None:
    for sample in results["samples"]["continue"]:
        prompt = encode(QUESTIONS[sample["doc_id"]]["question"])
        whole = post(prompt=prompt, max_tokens=12, temperature=0)["choices"][0]["text"]
        assert sample["resps"][0][0] == whole.split(".")[0]


def test_texts_are_scored_whole(results: dict[str, Any]) -> None:
    for sample in results["samples"]["roll"]:
        tokens = encode(QUESTIONS[sample["doc_id"]]["question"])
        logprob, _ = score([TOKENIZER.bos_token_id], tokens)
        assert float(sample["filtered_resps"][0]) == pytest.approx(logprob, abs=1e-3)


@pytest.mark.parametrize("bias", [{}, {str(TOKENIZER.eos_token_id): 100}], ids=["text", "end"])
def test_arrays_have_one_entry_more_than_the_prompt(bias: dict[str, int]) -> None:
    """This holds also if the sampled token is an end token, which has no text."""
    prompts = [encode(question["question"]) for question in QUESTIONS]
    reply = post(prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0, logit_bias=bias)
    for prompt, choice in zip(prompts, reply["choices"], strict=True):
        scores = choice["logprobs"]
        assert choice["finish_reason"] == ("stop" if bias else "length")
        assert {len(values) for values in scores.values()} == {len(prompt) + 1}
        assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
        for token, own, top in zip(*(scores[name][1:] for name in NAMES), strict=True):
            assert top[token] == own <= max(top.values())
        assert bias or scores["token_logprobs"][-1] == max(scores["top_logprobs"][-1].values())
