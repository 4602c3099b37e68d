"""Memory plans: by hand for Mistral 7B, and equal to the runner's sizes for models that can be loaded here."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from model import loading
from model.checkpoint.gguf.index import Index, TensorEntry
from model.checkpoint.gguf.open import GgufModel
from model.decide import planned
from model.errors import ModelError
from model.kernels.cpu import native
from model.memory import sizes as memory
from model.memory.plan import Fit, PoolNeed, make_plan
from model.options import RunnerOptions
from tests.model.driving import checkpoint, tiny
from tests.published import MISTRAL_7B

GIB = 2**30
MISTRAL = MISTRAL_7B | {"sliding_window": 4096}


def write(directory: Path, config: dict[str, Any], name: str = "config.json") -> Path:
    (directory / name).write_text(json.dumps(config))
    return directory


def options(**values: Any) -> RunnerOptions:
    return RunnerOptions("", **{"device": "cuda", "max_sequences": 64, "max_step_tokens": 512, **values})


def test_mistral_7b(tmp_path: Path) -> None:
    """Without a window a page of 32 tokens holds 32 * 131,072 bytes: 4 MiB."""
    plan = make_plan(write(tmp_path, MISTRAL | {"sliding_window": None}), options(), 80 * GIB)
    assert (plan.parameters, plan.weights, plan.token) == (7_241_732_096, 14_483_464_192, 131_072)
    assert (plan.scheme, plan.dtype, plan.kv_dtype, plan.context, plan.served) == (
        "none",
        "bfloat16",
        "bfloat16",
        32768,
        32768,
    )
    # 512 rows of x, of norm(x), of gate, up and their product in bf16; 2**23 logits, 8 times in float32; the context
    assert plan.step == 512 * (2 * 4096 + 3 * 14336) * 2 + (2**23 // 32000) * 32000 * 4 * 8 + 2**29
    # graphs of 64 slices: 7 columns and 1,025 pages of inputs; logits in float32 twice and in bf16. Of 512 rows: 3
    # columns, 16 pages in all, and the block. 2,048 sums of 32 heads, and where each begins; all else
    slices = 8 * (7 + 1025) + 32000 * (4 + 4 + 2)
    rows = 8 * 3 + (2 * 4096 + 3 * 14336) * 2
    sums = 2048 * (32 * (128 + 2) * 4 + 64)
    assert plan.graphs == 64 * slices + 512 * rows + 8 * 16 + sums + 3 * 2**26
    assert plan.cache == int(0.9 * 80 * GIB) - 14_483_464_192 - plan.step - plan.graphs
    n_pages = plan.cache // 2**22
    assert plan.pools == (PoolNeed(None, 32, 131_072, 2**22, n_pages),)
    assert plan.fits == tuple(
        Fit(length, length * 131_072, n_pages // (length // 32)) for length in (1024, 4096, 8192, 32768)
    )
    assert n_pages == 14_700
    # rank 16 in bf16: q and o 4096 + 4096, k and v 4096 + 1024, three of 4096 + 14336, in 32 layers
    assert plan.adapter == 2 * 16 * 32 * (2 * 8192 + 2 * 5120 + 3 * 18432)
    assert plan.adapters == 4


def test_the_longest_sequence_that_fits_has_a_row(tmp_path: Path) -> None:
    """A table of nothing but zeros would say that the model cannot be served."""
    plan = make_plan(write(tmp_path, MISTRAL | {"sliding_window": None}), options(), 17 * GIB)
    assert plan.served
    assert plan.served < plan.context
    sequences = {fit.tokens: fit.sequences for fit in plan.fits}
    assert sequences[plan.served] == 1
    assert not any(n for tokens, n in sequences.items() if tokens > plan.served)
    assert plan.fits[-1].tokens == plan.context


def test_pools_of_two_windows(tmp_path: Path) -> None:
    """Three of four layers see 1,024 tokens: ceil((1023 + 512) / 32) + 1 = 49 pages of 3 MiB, 1,024 pages of 1 MiB."""
    config = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "hidden_dim": 14336}
    config |= {"norm_eps": 1e-5, "vocab_size": 32000, "sliding_window": [1024, 1024, 1024, None]}
    plan = make_plan(write(tmp_path, config, "params.json"), options(), 24 * GIB)
    assert plan.dtype == "bfloat16"
    assert [(pool.window, pool.layers, pool.page_bytes) for pool in plan.pools] == [
        (1024, 24, 3 * 2**20),
        (None, 8, 2**20),
    ]
    assert plan.token == 131_072
    assert plan.fits[-1].n_bytes == (49 * 3 + 1024) * 2**20
    times = (plan.cache or 0) / plan.fits[-1].n_bytes
    assert [pool.n_pages for pool in plan.pools] == [int(49 * times), int(1024 * times)]
    assert plan.fits[-1].sequences == int(times)


def test_memory_may_be_shared_out_otherwise(tmp_path: Path) -> None:
    write(tmp_path, MISTRAL)
    assert make_plan(tmp_path, options(cache_memory=5 * GIB), 80 * GIB).cache == 5 * GIB
    smaller, larger = (
        make_plan(tmp_path, options(gpu_memory_utilization=share), 80 * GIB).cache for share in (0.5, 0.9)
    )
    assert (larger or 0) - (smaller or 0) == pytest.approx(32 * GIB, abs=1)
    int8 = make_plan(tmp_path, options(kv_dtype="int8"), 80 * GIB)
    assert int8.token == 131_072 // 2 // 128 * 132  # 128 bytes and a scale


@pytest.mark.parametrize("quantization", [None, {"quant_method": "fp8"}])
def test_a_damaged_file_is_not_passed_over(quantization: dict[str, Any] | None, tmp_path: Path) -> None:
    write(tmp_path, MISTRAL | {"quantization_config": quantization})
    (tmp_path / "model.safetensors").write_bytes(b"no header at all")
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged: .*; download it again"):
        make_plan(tmp_path, options(), None)


def test_an_index_alone_is_a_model_without_files(tmp_path: Path) -> None:
    """A name on the hub has an index before its files are downloaded; a part of them is a fault."""
    write(tmp_path, MISTRAL)
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert make_plan(tmp_path, options(), None).parameters == 7_241_732_096
    (tmp_path / names["a"]).touch()
    with pytest.raises(
        ModelError, match=r"shard model-00002-of-00002.safetensors is missing; download the model again"
    ):
        make_plan(tmp_path, options(), None)


def test_a_gguf_keeps_its_blocks_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the projections' weights in 4.5 bits, half in 8.5, the embeddings in 16."""
    file = tmp_path / "file.gguf"
    file.write_bytes(b"GGUF")
    shape = (14336, 4096)
    entries = [
        TensorEntry("tok_embeddings.weight", "Q4_0", (32000, 4096), 0, 0),
        TensorEntry("output.weight", "Q8_0", shape, 0, 0),
    ]
    index = Index((file,), (*entries, TensorEntry("layers.0.feed_forward.w1.weight", "Q4_0", shape, 0, 0)))
    for module in ("model.memory.plan", "model.checkpoint.config"):
        monkeypatch.setattr(f"{module}.open_gguf", lambda path: GgufModel(index, {}, MISTRAL))
    plan = make_plan(file, options(device="cpu"), 16 * GIB)
    assert (plan.scheme, plan.dtype) == ("int4", "bfloat16")
    assert plan.weights == 2 * 131_072_000 + (7_241_732_096 - 131_072_000) * 6.5 / 8
    assert make_plan(file, options(), None).scheme == "none"


@pytest.mark.parametrize(
    "values",
    [
        {"dtype": "float32"},
        {"quantize": "none"},  # float32 on a processor without instructions for bfloat16
        {"dtype": "bfloat16", "max_model_len": 100, "max_step_tokens": 100},
        {"cache_memory": 2**20, "max_sequences": 2},
        {"quantize": "int4", "kv_dtype": "int8"},
        {"sliding_window": 7},
    ],
    ids=str,
)
def test_the_runner_does_as_planned(tmp_path: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny((5, None), dim=64, hidden_dim=96, n_heads=4, head_dim=16)
    requested = options(device="cpu", **values)
    monkeypatch.setattr(loading, "free_bytes", lambda _: 3_000_000)
    needed: list[int] = []
    check = memory.check_weights
    monkeypatch.setattr(memory, "check_weights", lambda config, n, *rest: (needed.append(n), check(config, n, *rest)))
    info = loading.load_from(checkpoint(config), requested, lambda stage, done: None).info
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "norm_eps", "vocab_size", "dtype")
    params = {name: getattr(config, name) for name in names}
    write(tmp_path, params | {"sliding_window": [5, None], "max_seq_len": config.max_position}, "params.json")
    plan = make_plan(tmp_path, requested, 3_000_000)
    assert [plan.weights] == needed
    assert [(pool.window, pool.n_pages) for pool in plan.pools] == [(pool.window, pool.n_pages) for pool in info.pools]
    assert (plan.served, plan.page_size) == (info.max_model_len, info.page_size)
    assert info.description.items() >= {"dtype": plan.dtype, "kv_dtype": plan.kv_dtype, "quantize": plan.scheme}.items()


@pytest.mark.parametrize(("flags", "value_bytes"), [("avx2", 4), ("avx2 avx512_bf16", 2)])
def test_weights_that_are_not_quantized_are_in_a_format_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, value_bytes: int
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr("model.memory.plan.planned", partial(planned, root=tmp_path))
    plan = make_plan(write(tmp_path, MISTRAL), options(device="cpu", quantize="none"), 80 * GIB)
    assert (plan.weights, plan.token) == (7_241_732_096 * value_bytes, 65_536 * value_bytes)


def test_a_library_of_other_sources_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine does not use it either: it was built before, or is not complete."""
    monkeypatch.setattr("model.decide.fingerprint", lambda: "0" * 16)
    assert not planned("cpu").compiled


@pytest.mark.parametrize(("kernels", "scheme"), [("torch", "none"), ("baseline", "int8")])
@pytest.mark.skipif(native.kernels() is None, reason="takes compiled kernels for granted")
def test_the_plan_knows_which_kernels_the_engine_is_told_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, scheme: str
) -> None:
    monkeypatch.setenv("NORIA_KERNELS", kernels)
    assert make_plan(write(tmp_path, MISTRAL), options(device="cpu"), 80 * GIB).scheme == scheme


def test_planning_needs_no_torch() -> None:
    code = "import sys, model.memory.plan; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_window_for_every_layer_or_the_models_own() -> None:
    assert tiny().with_window(0) == tiny()
    assert tiny().with_window(3) == replace(tiny(), windows=(3, 3))
