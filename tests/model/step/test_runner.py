"""ModelRunner from a directory to tokens, and its errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.attention import BACKENDS
from model.attention.cache import LayerCache, PagePools
from model.batch import PageTable, Slice, SliceOutput, StepBatch
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.decide import Abilities, choose_dtype, planned
from model.errors import ModelError, OptionError
from model.kernels.cpu import native
from model.loading import create
from model.machine import device, gpu
from model.sampling_params import SamplingParams
from model.step import head
from model.step.runner import ModelRunner
from tests.model.attention.reference import ReferenceAttention

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43]
SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "attn_implementation": "eager",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Callable[[list[int], int | None], Tensor]]:
    """A directory with a Llama, and transformers' logits [n, vocab] for tokens, with a window or without."""
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    torch.manual_seed(2)
    directory = tmp_path_factory.mktemp("llama")
    plain = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    plain.save_pretrained(directory)

    @torch.no_grad()
    def logits(tokens: list[int], window: int | None = None) -> Tensor:
        theirs: Any = plain
        if window is not None:
            theirs = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=window)).eval()
            theirs.load_state_dict(plain.state_dict())
        return theirs(torch.tensor([tokens])).logits[0]

    return directory, logits


def start(directory: Path, **options: Any) -> ModelRunner:
    return create(lambda stage, done: None, model=str(directory), **{"device": "cpu", "dtype": "float32", **options})


def run(
    loaded: ModelRunner, tokens: list[int], cuts: list[int], params: SamplingParams, n_draft: int = 0
) -> list[SliceOutput]:
    """Compute one prompt in slices that end at `cuts`, the last of them with a draft."""
    outputs, begin = [], 0
    tables = tuple(PageTable(0, [1, 0, 3, 2]) for _ in loaded.info.pools)
    for stop in cuts:
        drafted = n_draft if stop == len(tokens) else 0
        part = Slice(0, tokens, len(PROMPT), begin, stop, tables, params, n_draft=drafted)
        outputs += loaded.step(StepBatch((part,))).slices
        begin = stop
    return outputs


@pytest.mark.parametrize("attention", ["paged", "sdpa"])
def test_greedy_tokens_and_logprobs_are_those_of_transformers(saved: Any, attention: str) -> None:
    directory, theirs = saved
    loaded = start(directory, attention=attention)
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=3)
    tokens = list(PROMPT)
    for _ in range(8):
        output = run(loaded, tokens, [5, len(tokens)], params)[-1]
        expected = theirs(tokens)[-1].log_softmax(-1)
        (logprob,) = output.logprobs
        assert output.tokens == (int(expected.argmax()),)
        assert logprob.logprob == pytest.approx(expected.max().item(), abs=1e-4)
        assert [token for token, _ in logprob.top] == expected.topk(3).indices.tolist()
        tokens += output.tokens


def test_a_slice_that_ends_early_or_wants_nothing_samples_nothing(saved: Any) -> None:
    loaded = start(saved[0])
    assert run(loaded, PROMPT, [4], SamplingParams()) == [SliceOutput()]
    assert run(loaded, PROMPT, [13], SamplingParams(max_tokens=0)) == [SliceOutput()]


@pytest.mark.parametrize("cuts", [[13], [1, 2, 9, 13], [12, 13]])
def test_prompt_logprobs_in_any_chunks(saved: Any, cuts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are scored in blocks of four rows, so that the ends of blocks and of chunks differ."""
    monkeypatch.setattr(head, "LOGIT_VALUES", 4 * 96)
    directory, theirs = saved
    outputs = run(start(directory), PROMPT, cuts, SamplingParams(prompt_logprobs=1, max_tokens=2))
    expected = theirs(PROMPT).log_softmax(-1)
    found = [logprob for output in outputs for logprob in output.prompt_logprobs]
    assert [item.token for item in found] == PROMPT[1:]
    for item, row, token in zip(found, expected, PROMPT[1:], strict=False):
        assert item.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert item.top[0][0] == int(row.argmax())
        assert len(item.top) == 1
    assert [len(output.tokens) for output in outputs] == [0] * (len(cuts) - 1) + [1]


PARAMS = [
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.9, seed=5, logprobs=0),
    SamplingParams(temperature=0.7, seed=6, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4),
    SamplingParams(temperature=0.0, min_tokens=7, stop_token_ids=tuple(range(48)), prompt_logprobs=1),
    SamplingParams(seed=7, allowed_token_ids=(3, 7, 11, 20), bad_words=((3,), (7, 7), (11, 7, 11))),
]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("attention", ["paged", "sdpa"])
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "seeded", "penalties", "min_tokens", "masks"])
def test_a_draft_gives_what_one_token_a_step_gives(
    saved: Any, attention: str, window: int | None, params: SamplingParams
) -> None:
    loaded = start(saved[0], attention=attention, sliding_window=window)
    tokens, alone = list(PROMPT), []
    for _ in range(9):
        alone += run(loaded, tokens, [len(tokens) - 1, len(tokens)], params)[1:]
        tokens += alone[-1].tokens
    rest = [token for output in alone for token in output.tokens]
    for n_right in (0, 1, 4):
        draft = [*rest[:n_right], (rest[n_right] + 1) % 96, rest[n_right + 1]]
        for cuts in ([9, len(PROMPT + draft)], [len(PROMPT + draft)]):
            (*_, output) = run(loaded, PROMPT + draft, cuts, params, n_draft=len(draft))
            assert output.tokens == tuple(rest[: n_right + 1])
            expected = [item for step in alone[: n_right + 1] for item in step.logprobs]
            assert [item.token for item in output.logprobs] == [item.token for item in expected]
            values = [item.logprob for item in output.logprobs]
            assert values == pytest.approx([item.logprob for item in expected], abs=1e-4)


def test_window_on_a_model_without_one(saved: Any) -> None:
    directory, theirs = saved
    loaded = start(directory, sliding_window=4)
    assert [pool.window for pool in loaded.info.pools] == [4]
    params = SamplingParams(temperature=0.0, logprobs=0)
    (output,) = run(loaded, PROMPT, [13], params)
    expected = theirs(PROMPT, 4)[-1].log_softmax(-1)
    (logprob,) = output.logprobs
    assert output.tokens == (int(expected.argmax()),)
    assert logprob.logprob == pytest.approx(expected.max().item(), abs=1e-4)
    assert not torch.allclose(expected, theirs(PROMPT)[-1].log_softmax(-1), atol=1e-2)


def test_dynamic_rope_scaling_serves_more_than_the_trained_context(saved: Any, tmp_path: Path) -> None:
    shutil.copytree(saved[0], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert start(tmp_path).info.max_model_len == 128
    assert start(tmp_path, max_model_len=256).info.max_model_len == 256
    with pytest.raises(OptionError, match="--max-model-len 257 is more than the model's context of 256 tokens"):
        start(tmp_path, max_model_len=257)


def test_info_tells_what_runs(saved: Any) -> None:
    info = start(saved[0], max_model_len=100, max_sequences=2, cache_memory=2**20).info
    assert (info.max_model_len, info.vocab_size, info.page_size) == (100, 96, 32)
    # a page holds 32 positions x 2 layers x 2 x 16 values of 4 bytes: 8 KiB
    assert [(pool.window, pool.n_pages) for pool in info.pools] == [(None, 128)]
    by_default = start(saved[0], max_model_len=100, max_sequences=2).info  # two sequences of 4 pages, twice
    assert [(pool.window, pool.n_pages) for pool in by_default.pools] == [(None, 16)]
    assert info.description == {
        "family": "llama",
        "parameters": 21664,
        "weights": open_checkpoint(saved[0]).fingerprint,
        "device": "cpu",
        "dtype": "float32",
        "kv_dtype": "float32",
        "attention": "paged",
        "quantize": "none",
        "kernels": native.describe(native.kernels()),
        "kernels_reason": native.reason(),
        "torch": torch.__version__,
    }


def test_progress_names_its_stages(saved: Any) -> None:
    seen: list[tuple[str, float]] = []
    create(lambda stage, done: seen.append((stage, done)), model=str(saved[0]), device="cpu")
    assert list(dict.fromkeys(stage for stage, _ in seen)) == ["checking memory", "loading weights", "warming up"]
    assert ("loading weights", 1.0) in seen


def test_a_checkpoint_whose_logits_are_not_finite_is_refused(saved: Any, tmp_path: Path) -> None:
    shutil.copytree(saved[0], tmp_path, dirs_exist_ok=True)
    (file,) = tmp_path.glob("*.safetensors")
    tensors = load_file(file)
    tensors["model.norm.weight"][:] = 3e38
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ModelError, match="the model's logits are not finite"):
        start(tmp_path)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")]
)
def test_memory_that_runs_out_after_all_is_one_line(
    saved: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_much(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(PagePools, "allocate", too_much)
    with pytest.raises(
        OptionError, match=r"memory ran out while the model was loaded \(.*\); free memory, or lower --ca"
    ):
        start(saved[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "--device tpu is not known, choose one of: auto, cpu, cuda"),
        ({"dtype": "int8"}, "--dtype int8 is not known, choose one of: auto, bfloat16, float16, float32"),
        ({"kv_dtype": "q8_0"}, "--kv-dtype q8_0 is not known, choose one of: auto, int8"),
        ({"kv_dtype": "int8", "attention": "sdpa"}, "--kv-dtype int8 needs --attention paged"),
        ({"attention": "flash"}, "--attention flash is not known"),
        ({"quantize": "q4"}, "--quantize q4 is not known"),
        ({"max_model_len": 129}, "--max-model-len 129 is more than the model's context of 128"),
        ({"max_model_len": 10**12, "sliding_window": 4}, "rotary positions of 1000000000000 tokens need 29802.32 GiB"),
        ({"sliding_window": -1}, "--sliding-window must be at least 1, got -1"),
        ({"max_step_tokens": 0}, "--max-step-tokens must be at least 1 and at most 1048576, got 0"),
        ({"max_sequences": 0}, "--max-sequences must be at least 1, got 0"),
        ({"threads": 0}, "--threads must be at least 1, got 0"),
        ({"threads": 10**6}, "--threads must be 1 to "),
        ({"cache_memory": 1000}, "one sequence of 1 tokens needs 8.0 KiB"),
        ({"cache_memory": 2**60}, "--cache-memory 1073741824.00 GiB is more than this machine has free"),
    ],
)
def test_options_that_cannot_be_honoured(saved: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        start(saved[0], **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_threads_are_those_of_the_kernels_and_of_pytorch(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(native, "use_threads", counts.append)
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    start(saved[0], threads=1, quantize="none")
    assert counts == [1, 1] * 2, "of the self-test, then of the model"


def test_an_unused_gpu_is_reported(
    saved: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in the log, before the weights are read, and in /version, which shows the description."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "driver", lambda: "535.129.03")
    why = start(saved[0], device="auto").info.description["unused_gpu"]
    assert "NVIDIA's driver 535.129.03" in why
    assert [line.message for line in caplog.records] == [f"no GPU is used: {why}, or choose --device cpu"]
    assert "unused_gpu" not in start(saved[0]).info.description


def test_memory_is_checked_before_weights_are_read(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(Checkpoint, "tensors", read)
    monkeypatch.setattr(device, "free_memory", lambda: 80_000)
    with pytest.raises(
        OptionError, match=r"weights need 84.6 KiB in float32, .* 78.1 KiB free; --dtype bfloat16 would"
    ):
        start(saved[0])
    for scheme, needed in (("int8", "26.4 KiB in int8"), ("int4", "17.3 KiB in int4")):
        monkeypatch.setattr(device, "free_memory", lambda: 10_000)
        with pytest.raises(OptionError, match=rf"weights need {needed}, .* 9.8 KiB free; choose a smaller model"):
            start(saved[0], quantize=scheme, dtype="auto")
    monkeypatch.setattr(device, "free_memory", lambda: 180_000)
    with pytest.raises(
        OptionError, match=r"100 tokens needs 32.0 KiB .* the cache has 22.8 KiB; --max-model-len 64 would fit"
    ):
        start(saved[0], max_model_len=100)


@pytest.mark.parametrize(
    ("cpuinfo", "bfloat16", "float16"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16\n", True, False),
        ("flags\t\t: fpu amx_bf16 avx512_fp16\n", True, True),
        ("flags\t\t: fpu avx2\n", False, False),
        ("Features\t: fp asimd asimdhp bf16\n", True, True),
        ("Features\t: fp asimd\n", False, False),
    ],
)
def test_auto_dtype_is_what_the_processor_computes(tmp_path: Path, cpuinfo: str, bfloat16: bool, float16: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\n" + cpuinfo)
    here = planned("cpu", tmp_path)
    assert (choose_dtype("auto", "bfloat16", here) == "bfloat16") is bfloat16
    assert (choose_dtype("auto", "float16", here) == "float16") is float16
    assert choose_dtype("auto", "float32", here) == "float32"


def test_dtype_on_a_gpu_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    def auto(own: str) -> str:
        return choose_dtype("auto", own, Abilities("cuda", device.native_formats(torch.device("cuda"))))

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert (auto("bfloat16"), auto("float32")) == ("float16", "float32")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert auto("bfloat16") == "bfloat16"


def test_keys_and_values_in_bytes_hold_more_pages(saved: Any) -> None:
    """16 bytes and a float where float32 takes 32 bytes; logprobs stay near."""
    directory, _ = saved
    options = {"cache_memory": 2**20, "max_model_len": 64, "max_sequences": 1000}
    whole, bytes_ = start(directory, **options), start(directory, kv_dtype="int8", **options)
    assert bytes_.info.description["kv_dtype"] == "int8"
    n_pages = [runner.info.pools[0].n_pages for runner in (whole, bytes_)]
    assert n_pages[1] / n_pages[0] == pytest.approx(32 / 20, rel=0.02)
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0)
    exact, near = (run(runner, PROMPT, [13], params)[0].logprobs[0].logprob for runner in (whole, bytes_))
    assert near == pytest.approx(exact, abs=0.02)
    assert near != exact


def test_keys_and_values_in_fp8_are_rounded_and_nothing_else(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of float32's memory; logprobs are those of float32 with keys and values rounded by hand."""
    directory, _ = saved
    monkeypatch.setitem(BACKENDS, "reference", ReferenceAttention)  # no product backend has fp8 on a CPU
    options = {"cache_memory": 2**20, "max_model_len": 64, "max_sequences": 1000, "attention": "reference"}
    whole, narrow = start(directory, **options), start(directory, kv_dtype="fp8", **options)
    assert narrow.info.description["kv_dtype"] == "float8_e4m3fn"
    n_pages = [runner.info.pools[0].n_pages for runner in (whole, narrow)]
    assert n_pages[1] / n_pages[0] == pytest.approx(4, rel=0.02)
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0)
    exact, found = (run(runner, PROMPT, [5, 13], params)[1].logprobs[0].logprob for runner in (whole, narrow))
    write = LayerCache.write

    def rounding(self: LayerCache, slots: Tensor, k: Tensor, v: Tensor) -> None:
        write(self, slots, *(rows.to(torch.float8_e4m3fn).to(rows.dtype) for rows in (k, v)))

    monkeypatch.setattr(LayerCache, "write", rounding)
    by_hand = run(start(directory, **options), PROMPT, [5, 13], params)[1].logprobs[0].logprob
    assert found == by_hand != exact
