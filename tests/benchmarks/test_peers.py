"""The benchmark of the peers: the choice of engines, the comparison and the stored result."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.peers import __main__ as peers
from benchmarks.peers import servers, w8a8
from benchmarks.peers.engines import Engine, Online, engines, engines_on, engines_on_native
from benchmarks.peers.loads import LOADS, Load, chosen, figures, measure, send
from benchmarks.peers.results import Row, cells, figure, rows
from benchmarks.random_weights import LATENT, save
from benchmarks.workload import Workload
from model.checkpoint.config import read_config
from tests.service.commands.fake_openai import FakeOpenAI, serving
from tests.waiting import ended, eventually

pytestmark = pytest.mark.tools


@pytest.mark.parametrize("flags", [["--engines", "nosuch"], ["--gguf", "x.gguf", "--only", "online"]])
def test_flags_that_leave_nothing_are_refused(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "found.json"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(sys, "argv", ["peers", *flags, "--output", str(file)])
    with pytest.raises(SystemExit, match="no engine is left to measure"):
        peers.main()
    assert not file.exists()


def test_every_program_that_measures_is_there(tmp_path: Path) -> None:
    online = Online(LOADS, 1.0)
    work = Workload(2)
    native = list(engines_on_native(tmp_path / "x", tmp_path, work))
    assert [(engine.name, engine.bits) for engine in native] == [
        ("noria bf16", "16"),
        ("noria int8", "8"),
        ("vllm bf16", "16"),
    ]
    known = [*engines(tmp_path, work, online), *engines_on(tmp_path / "x.gguf", tmp_path, work), *native]
    commands = [part for engine in known for part in getattr(engine.measure, "args", ()) if isinstance(part, list)]
    modules = {command[command.index("-m") + 1] for command in commands}
    expected = {"engine", "peers.without_http", "peers.transformers", "peers.vllm", "peers.pace"}
    assert modules >= {f"benchmarks.{name}" for name in expected}
    assert all(find_spec(name) for name in modules)


def test_a_checkpoint_in_mistrals_format_is_measured_without_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(LATENT, dim=64, vocab_size=512, n_experts=6, hidden_dim=96, expert_hidden_dim=32)
    save(config, torch.device("cpu"), tmp_path)
    assert read_config(tmp_path) == config
    parts = {f"{part}.weight" for part in ("gate", "experts.5.w1", "shared_experts.w2", "attention.wkv_a_with_mqa")}
    assert {f"layers.1.{part}" for part in parts} < load_file(tmp_path / "consolidated.safetensors").keys()

    flags = {"--native": tmp_path, "--repeat": 1, "--prefill": 8, "--streams": 2, "--prompt": 4, "--tokens": 4}
    flags |= {"--threads": 2, "--output": tmp_path / "found.json"}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(sys, "argv", ["peers", *(str(part) for flag in flags.items() for part in flag)])
    peers.main()
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["model"] == tmp_path.name
    assert found["measured"].keys() == {"noria bf16", "noria int8"}
    for speeds in found["measured"].values():
        assert speeds.keys() == {"prefill 8", "decode 2"}
        assert all(speed > 0 for (speed,) in speeds.values())


def test_rows_compare_medians_at_equal_bits_best_first() -> None:
    kinds = {
        "ours": ("8", "ours"),
        "slow": ("8", "peer"),
        "fast": ("8", "peer"),
        "wide": ("16", "peer"),
        "narrow": ("16", "ours"),
    }
    chosen = [Engine(name, bits, kind, False, dict) for name, (bits, kind) in kinds.items()]
    first = "HTTP 32: ms to first token, p50"
    found = {
        "ours": {"decode 8": [10.0, 90.0, 30.0], first: [5.0]},
        "slow": {"decode 8": [10.0], first: [20.0]},
        "fast": {"decode 8": [15.0], first: [10.0]},
        "wide": {"decode 8": [99.0]},
        "narrow": {},
    }
    made = list(rows(chosen, found, {"narrow": "it has no such context"}))
    assert cells(made[1])[2:] == ("not measured", "wide 99", "-", "narrow: it has no such context")
    assert made == [
        Row("decode 8", "8", 30.0, {"fast": 15.0, "slow": 10.0}, {}, {}),
        Row("decode 8", "16", None, {"wide": 99.0}, {}, {"narrow": "it has no such context"}),
        Row(first, "8", 5.0, {"fast": 10.0, "slow": 20.0}, {}, {}),
    ]
    assert [*made[0].peers] == [*made[2].peers] == ["fast", "slow"]


def test_shares_of_capacity_become_rates_of_their_server() -> None:
    sent: list[Load] = []
    seeds: list[int] = []

    def report_of(load: Load, seed: int) -> dict[str, Any]:
        sent.append(load)
        seeds.append(seed)
        latencies = {kind: {"p50": 0.25, "p99": 0.75} for kind in ("time_to_first_token", "inter_token")}
        throughput = {"requests_per_second": 6.0, "output_tokens_per_second": 384.0, "prompt_tokens_per_second": 1536.0}
        return {"throughput": throughput, "latency_seconds": latencies}

    found = measure(chosen("capacity,HTTP 32,7", (2.0, 7.0)), report_of)
    assert len({*seeds, *(seed + 1 for seed in seeds)}) == 2 * len(sent)  # with those of the warm-ups
    assert [load.rate for load in sent] == [None, None, 3.0, pytest.approx(4.8), pytest.approx(5.7), 7.0]
    assert [load.concurrency for load in sent] == [32, 32, None, None, None, None]
    assert found["HTTP 32"] == 384.0
    assert found["HTTP mixed, requests/s"] == 6.0
    assert found["HTTP mixed, 80% of capacity: ms to first token, p99"] == 750.0
    assert found["HTTP mixed, 80% of capacity: ms between tokens, p50"] == 250.0
    assert "HTTP mixed, 80% of capacity" not in found


def test_every_load_is_one_that_noria_bench_sends(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    with serving(fake) as url:
        for case, load in chosen("").items():
            rate = 50.0 if load.share else load.rate
            report = send(url, "none", replace(load, rate=rate, share=None), 0.5, 1)
            assert figures(case, load, report)
    lengths = {len(body["prompt"].split()) for body in fake.requests}
    assert {64, 512} < lengths
    assert all(32 <= length <= 512 for length in lengths)
    assert {1, 16, 64} < {body["max_tokens"] for body in fake.requests}


def test_a_load_with_failures_is_not_a_measurement() -> None:
    with serving(FakeOpenAI(fails={3: 503})) as url, pytest.raises(RuntimeError, match="http_503"):
        send(url, "none", Load(concurrency=1), 0.5, 1)


def test_a_server_that_ends_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 99 & echo $! > {pid}; echo no such model; exit 3"]
    with pytest.raises(RuntimeError, match="ended and said: no such model"), servers._running(command, {}, 1):
        pass
    eventually(lambda: ended(int(pid.read_text())), "the server's child has ended")


def test_int8_weights_are_within_half_a_step() -> None:
    torch.manual_seed(0)
    weight = torch.cat([torch.randn(7, 32), torch.zeros(1, 32)]).to(torch.bfloat16)
    integers, scales = w8a8.quantize(weight)
    assert integers.dtype == torch.int8
    assert integers.abs().amax(dim=1).tolist() == [127] * 7 + [0]
    assert ((integers * scales - weight.float()).abs() <= scales * 0.5001).all()


def test_the_checkpoint_has_integers_for_projections_only(tmp_path: Path) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    tensors = {"model.embed_tokens.weight": torch.ones(4, 8), "model.layers.0.mlp.up_proj.weight": torch.ones(6, 8)}
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text('{"hidden_size": 8}')
    w8a8.write(source, target)
    written = load_file(target / "model.safetensors")
    assert {name: (tuple(t.shape), t.dtype) for name, t in written.items()} == {
        "model.embed_tokens.weight": ((4, 8), torch.float32),
        "model.layers.0.mlp.up_proj.weight": ((6, 8), torch.int8),
        "model.layers.0.mlp.up_proj.weight_scale": ((6, 1), torch.float32),
    }
    config = json.loads((target / "config.json").read_text())
    assert config["hidden_size"] == 8
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"


def test_a_missing_peer_is_reported_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = engines(tmp_path, Workload(2), Online(LOADS, 1.0))
    monkeypatch.setattr(servers, "START_SECONDS", 5.0)
    missing = [engine for engine in known if engine.kind == "peer"]
    assert {engine.name for engine in missing} > {"vllm int8", "pace", "llama-server bf16", "vllm serve bf16"}
    *_, (found, why) = peers.run(missing, 1)
    assert not any(found.values())
    assert why.keys() == {engine.name for engine in missing}
    said = capsys.readouterr().err
    assert all(f"{engine.name} failed" in said for engine in missing)


@pytest.mark.parametrize(("value", "text"), [(1234.4, "1234"), (99.96, "100"), (12.34, "12.3"), (1.234, "1.23")])
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert figure(value) == text
