"""The runner with adapters: loaded at start and later, dropped and read again, lost."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model import loading
from model.batch import BROKEN_NUMBERS, UNKNOWN, PageTable, Slice, SliceOutput, StepBatch
from model.errors import ModelError
from model.loading import create
from model.memory import sizes as memory
from model.network import adapters as network_adapters
from model.network.adapters import AdapterStore
from model.network.lora import Lora
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from tests.model.checkpoint.adapter_files import save_peft
from tests.model.network.oracles import TOKENS, llama

PROMPT, PARAMS = TOKENS[:20], SamplingParams(temperature=0.0, logprobs=0, prompt_logprobs=0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, list[float]]]:
    """A model and three adapters in its directory; by the name of each the logprobs of PROMPT and of the next token."""
    directory = tmp_path_factory.mktemp("llama")
    torch.manual_seed(4)
    model: Any = llama().eval()
    model.save_pretrained(directory)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    changes = {str(n): save_peft(directory / str(n), weights, seed=n, r=2 + n, lora_alpha=8) for n in (1, 2, 3)}
    expected = {}
    for name, change in {"": {}, **changes}.items():
        model.load_state_dict({key: weight + change.get(key, 0) for key, weight in weights.items()})
        with torch.no_grad():
            expected[name] = scores(model(torch.tensor([PROMPT])).logits[0].log_softmax(-1))
    return directory, expected


def scores(logprobs: Tensor) -> list[float]:
    """The log probability of each token of PROMPT but the first, and of the likeliest token after them."""
    known = logprobs[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    return [*known.tolist(), logprobs[-1].max().item()]


def start(base: Any, numbers: tuple[int, ...] = (), **options: Any) -> ModelRunner:
    adapters = tuple((n, str(base[0] / str(n))) for n in numbers)
    options = {"device": "cpu", "dtype": "float32", "adapters": adapters, **options}
    return create(lambda *_: None, model=str(base[0]), **options)


def step(runner: ModelRunner, *adapters: int) -> tuple[SliceOutput, ...]:
    """PROMPT once for each of these adapters, in one step."""
    size = len(PROMPT)
    slices = (
        Slice(row, PROMPT, size, 0, size, (PageTable(0, [row]),), PARAMS, adapter=number)
        for row, number in enumerate(adapters)
    )
    return runner.step(StepBatch(tuple(slices))).slices


def check(base: Any, output: SliceOutput, adapter: int) -> None:
    found = [item.logprob for item in (*output.prompt_logprobs, *output.logprobs)]
    assert found == pytest.approx(base[1][str(adapter or "")], abs=1e-4)


def test_requests_of_several_adapters_share_a_step(base: Any) -> None:
    """Prompt logprobs and the sampled token of each are those of transformers with its merged weights."""
    runner = start(base, (1, 2, 3))
    assert runner.info.max_adapters == 4
    chosen = (2, 0, 1, 2, 3, 0)
    for output, adapter in zip(step(runner, *chosen), chosen, strict=True):
        check(base, output, adapter)


def test_an_adapter_may_come_and_go(base: Any) -> None:
    runner = start(base)
    runner.adapters.load(7, str(base[0] / "1"))
    check(base, step(runner, 7)[0], 1)
    runner.adapters.unload(7)
    (output,) = step(runner, 7)
    assert output.fault == "the request's adapter cannot be read again: no adapter has the number 7"
    with pytest.raises(ModelError, match="there is no adapter 'absent'"):
        runner.adapters.load(8, str(base[0] / "absent"))


def test_dropped_adapters_are_read_again(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = start(base, (1, 2, 3), max_loras=2)
    store, reads = runner.adapters, []
    inner = store._read
    monkeypatch.setattr(store, "_read", lambda path: (reads.append(path.name), inner(path))[1])
    for adapters in ((2, 3), (1, 3), (3, 1), (2,), (2, 3)):
        for output, adapter in zip(step(runner, *adapters), adapters, strict=True):
            check(base, output, adapter)
    assert reads == ["1", "2"], "the least recently used one was dropped each time"
    assert len(store._in_memory) == 2


@pytest.mark.parametrize("kind", ["gone", "changed"])
def test_an_adapter_that_cannot_be_read_again_ends_its_slices_alone(base: Any, kind: str, tmp_path: Path) -> None:
    for n in (1, 2):
        shutil.copytree(base[0] / str(n), tmp_path / str(n))
    runner = start(base)
    runner.adapters.load(1, str(tmp_path / "1"))
    for number in (2, 3, 4, 5):  # 1 leaves the memory
        runner.adapters.load(number, str(tmp_path / "2"))
    if kind == "gone":
        shutil.rmtree(tmp_path / "1")
    else:
        config = tmp_path / "1" / "adapter_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 9}))
    first, second, third = step(runner, 0, 1, 2)
    check(base, first, 0)
    check(base, third, 2)
    assert second.tokens == ()
    reason = {"gone": "there is no adapter '1'", "changed": "the files of '1' have changed since it was loaded"}[kind]
    assert second.fault is not None
    assert reason in second.fault
    assert step(runner, 1)[0].fault == second.fault, "also alone in a step"


def test_a_step_may_follow_one_of_which_a_slice_had_no_adapter(base: Any) -> None:
    """The sequence without its adapter got no token. The step after it, launched already, does not raise."""
    runner = start(base, (1, 2))
    runner.info = replace(runner.info, runs_ahead=True)
    tables = [tuple(PageTable(0, [page]) for _ in runner.info.pools) for page in (0, 1)]
    first = [Slice(7 * page, PROMPT, 20, 0, 20, tables[page], PARAMS, adapter=1 + 6 * page) for page in (0, 1)]
    second = [item._replace(tokens=(*PROMPT, UNKNOWN), start=20, stop=21, adapter=1) for item in first]
    before, after = (runner.launch(StepBatch(tuple(slices))) for slices in (first, second))
    assert [output.fault is None for output in before().slices] == [True, False]
    sound, _ = after().slices  # nobody reads the other: its prompt's keys were never written, and may be no numbers
    assert sound.fault is None


def test_memory_for_adapters_is_reserved(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """max_loras times the largest adapter, in the format that serves: 4 bytes a value in float32, 2 beside int8."""
    seen: list[int] = []
    budget = memory.cpu_budget

    def watched(required: int | None, free: int, *more: Any) -> int:
        seen.append(free)
        return budget(required, free, *more)

    monkeypatch.setattr(memory, "cpu_budget", watched)
    monkeypatch.setattr(loading, "free_bytes", lambda device: 2**30)
    store = start(base, (1, 2, 3)).adapters
    largest = max(store.get(number).n_bytes for number in (1, 2, 3))
    start(base)
    start(base, (1, 2, 3), max_loras=7)
    assert [seen[1] - seen[0], seen[1] - seen[2]] == [4 * largest, 7 * largest]
    start(base, dtype="auto", quantize="int8")
    start(base, (3,), dtype="auto", quantize="int8", max_loras=1)
    assert seen[3] - seen[4] == largest // 2


def test_an_adapter_beyond_the_memory_is_refused(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = start(base)
    monkeypatch.setattr(network_adapters, "free_bytes", lambda device: 1000)
    with pytest.raises(ModelError, match=r"the adapter '1' needs .* KiB, 1000 bytes are free; unload another"):
        runner.adapters.load(1, str(base[0] / "1"))


@pytest.mark.parametrize("options", [{}, {"dtype": "auto", "quantize": "int8"}], ids=str)
def test_an_adapter_that_no_request_could_use_is_refused(options: Any, base: Any, tmp_path: Path) -> None:
    shutil.copytree(base[0] / "1", tmp_path / "1")
    tensors = load_file(tmp_path / "1" / "adapter_model.safetensors")
    save_file({name: value * 1e15 for name, value in tensors.items()}, tmp_path / "1" / "adapter_model.safetensors")
    runner = start(base, (2,), **options)
    with pytest.raises(ModelError, match=r"lora_A\.weight' and its lora_B reach .*e\+\d+ with the scale 2.67; in "):
        runner.adapters.load(1, str(tmp_path / "1"))
    assert not runner.adapters.has(1)


def test_an_adapter_whose_numbers_overflow_breaks_its_own_requests_alone(base: Any) -> None:
    """Its values pass the check at load; then they grow in memory, in place of inputs for which they are too large."""
    runner = start(base, (1, 2))
    products = [product for layer in runner.adapters.get(1).layers for product in layer.values()]
    with torch.inference_mode():
        for matrix in (matrix for one in products for matrix in (one.a, *(part.b for part in one.parts))):
            matrix.mul_(1e30)
    first, second, third = step(runner, 2, 1, 0)
    check(base, first, 2)
    check(base, third, 0)
    assert second == SliceOutput(fault=BROKEN_NUMBERS)


def test_what_a_step_uses_stays_in_memory() -> None:
    """A load beside a step that uses as many as fit leaves the new one on disk until a step needs it."""
    reads: list[str] = []

    def read(path: Path) -> tuple[str, Lora]:
        reads.append(path.name)
        return path.name, Lora(())

    store = AdapterStore(read, 2)
    for number in (1, 2):
        store.load(number, str(number))
    assert store.begin_step({1, 2}) == {}
    store.load(3, "3")
    first = store.get(1)
    assert reads == ["1", "2", "3"]
    assert store.begin_step({1, 3}) == {}
    assert store.get(1) is first
    assert reads == ["1", "2", "3", "3"]
    store.load(4, "4")
    assert store.begin_step({4}) == {}
    assert reads[4:] == ["4", "4"], "the last step used as many as fit"
    store.begin_step(())
    store.load(5, "5")
    store.get(5)
    assert reads[6:] == ["5"]


def test_an_adapter_is_read_again_while_steps_run(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the place of the one that no running sequence uses, and the step that uses it reads nothing."""
    runner = start(base, (1, 2, 3), max_loras=2)
    step(runner, 2)
    step(runner, 3)  # its sequence ends
    store = runner.adapters
    inner = store._read
    monkeypatch.setattr(store, "_read", lambda path: (step(runner, 2), inner(path))[1])
    runner.adapters.read_again(1, {2})
    assert [runner.adapters.has(number) for number in (1, 2, 3)] == [True, True, False]
    monkeypatch.setattr(store, "_read", lambda path: pytest.fail("a step reads no adapter"))
    check(base, step(runner, 1)[0], 1)
    runner.adapters.read_again(9, ())
    assert not runner.adapters.has(9), "it has been unloaded meanwhile"
