"""The contract of every attention backend, against a dense computation that knows no pages."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from model import loading
from model.attention import BACKENDS, choose
from model.attention.base import Attention
from model.attention.triton import TritonAttention
from model.errors import OptionError
from model.kernels import cuda as triton_kernels
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from tests.e2e.without_server import serve
from tests.model.attention.attending import CPU, make
from tests.model.attention.dense import check_rule
from tests.model.attention.reference import ReferenceAttention
from tests.model.driving import checkpoint, tiny


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Attention:
    return make(request.param)


def heads(backend: Attention, n_heads: int, n_kv_heads: int) -> tuple[int, int]:
    """The numbers of heads for a backend. Triton has one group, because its interpreter takes 10 ms for each group."""
    return (n_heads // n_kv_heads, 1) if isinstance(backend, TritonAttention) else (n_heads, n_kv_heads)


@pytest.mark.parametrize(
    ("window", "chunks"),
    [
        (None, [7]),
        (None, [40, 1, 1, 3]),
        (1, [1]),
        (5, [200]),
        (32, [7]),
        (33, [40, 1, 1, 3]),
    ],
)
def test_rule_holds(backend: Attention, window: int | None, chunks: list[int]) -> None:
    check_rule(backend, [75], chunks, window, heads(backend, 4, 2))


@pytest.mark.parametrize(("window", "chunks"), [(None, [1]), (5, [33, 1, 1, 9])])
def test_packed_sequences_do_not_see_each_other(backend: Attention, window: int | None, chunks: list[int]) -> None:
    check_rule(backend, [1, 64, 37, 65], chunks, window, heads(backend, 4, 2))


@pytest.mark.parametrize(("window", "dtype"), [(5, torch.bfloat16), (40, torch.float32)])
def test_decoding_beside_shorter_and_longer_sequences_and_a_chunk(
    backend: Attention, window: int | None, dtype: torch.dtype
) -> None:
    lengths = [68, 9, 20, 71]
    chunks = [[length - 2, 1, 1] for length in lengths]
    chunks[2] = [11, 3]
    check_rule(backend, lengths, chunks, window, heads(backend, 6, 2), dtype=dtype)


@pytest.mark.parametrize("window", [None, 9])
def test_pages_in_order_and_lengths_of_a_page(backend: Attention, window: int | None) -> None:
    size = backend.page_size
    check_rule(backend, [2 * size - 1], [size, 1], window, (2, 1), ordered=True)
    check_rule(backend, [2 * size + 1], [size - 1, 1, 1], window, (2, 1), ordered=True)


HALVES = [(name, dtype) for name in sorted(BACKENDS) for dtype in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize(("name", "dtype"), [pair for pair in HALVES if pair[1] in BACKENDS[pair[0]].dtypes])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    check_rule(make(name), [40, 41], [30, 1, 4], 35, (4, 2), dtype=dtype)


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match="--attention flash is not known, choose one of: auto, paged, sdpa, triton"):
        choose("flash", CPU)


def test_auto_is_paged_where_kernels_are_compiled(kernels: Kernels) -> None:
    assert choose("auto", CPU, torch.bfloat16, kernels=kernels)[0] == "paged"
    assert choose("auto", CPU, torch.float16, kernels=kernels)[0] == "sdpa"
    assert choose("auto", CPU, torch.bfloat16, torch.bfloat16, kernels=kernels)[0] == "sdpa"
    assert choose("auto", CPU, torch.int8, torch.bfloat16, kernels=kernels)[0] == "paged"
    with pytest.raises(OptionError, match=r"--kv-dtype int8 needs --attention paged .*, here it is sdpa"):
        choose("sdpa", CPU, torch.int8)
    with pytest.raises(
        OptionError, match="--attention paged keeps keys and values in bfloat16, float32, int8, not in float16"
    ):
        choose("paged", CPU, torch.float16)
    assert choose("auto", CPU, torch.bfloat16)[0] == "sdpa"
    with pytest.raises(OptionError, match="--attention paged needs the compiled kernels"):
        choose("paged", CPU, torch.bfloat16)


@pytest.mark.parametrize(("heads", "served"), [((64, 1, 512), "paged"), ((2, 1, 514), "sdpa"), ((65, 1, 8), "sdpa")])
def test_auto_asks_for_the_heads(heads: tuple[int, int, int], served: str, caplog: pytest.LogCaptureFixture) -> None:
    assert choose("auto", CPU, torch.bfloat16, kernels=native.needed(), heads=heads)[0] == served
    assert ("--attention paged serves heads of up to 512" in caplog.text) == (served == "sdpa")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "paged"}, "--attention paged serves heads .* 514 and 2; use --attention sdpa"),
        ({"kv_dtype": "int8"}, "serves heads .* 514 and 2, but --kv-dtype int8 needs --attention paged"),
        ({"deterministic": True}, "serves heads .* 514 and 2, but --deterministic needs --attention paged"),
    ],
    ids=str,
)
@pytest.mark.skipif(native.kernels() is None, reason="needs the compiled kernels")
def test_heads_that_no_backend_serves_are_refused_before_weights_are_read(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "read", lambda *_: pytest.fail("weights are read"))
    chosen = RunnerOptions("", device="cpu", cache_memory=2**22, **options)
    with pytest.raises(OptionError, match=message):
        loading.load_from(checkpoint(tiny(n_heads=2, n_kv_heads=1, head_dim=514)), chosen, lambda *_: None)


@pytest.mark.parametrize("heads", [(2, 1, 514), (65, 1, 8)])
def test_a_model_with_heads_beyond_the_kernels_is_served(
    heads: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are those of the dense reference."""
    monkeypatch.setitem(BACKENDS, "reference", ReferenceAttention)
    config = tiny(**dict(zip(("n_heads", "n_kv_heads", "head_dim"), heads, strict=True)))
    texts = list[list[int]]()
    for attention in ("auto", "reference"):
        options = RunnerOptions("", device="cpu", dtype="float32", cache_memory=2**22, attention=attention)
        runner = loading.load_from(checkpoint(config), options, lambda *_: None)
        request = [(5 * n) % 60 for n in range(40)], SamplingParams(temperature=0.0, max_tokens=8, logprobs=0)
        texts.append([token for token, _ in serve(runner, [request], max_step_tokens=16)[0][0]])
    assert len(texts[0]) == 8
    assert texts[0] == texts[1]


GPU = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int]], None]:
    """Pretend a GPU of some compute capability, on which nothing is interpreted."""
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return lambda capability: monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def test_auto_on_a_gpu(
    gpu: Callable[[tuple[int, int]], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton needs tensor cores and its package. Without them PyTorch's operation serves, with a warning."""
    gpu((9, 0))
    assert choose("auto", GPU, torch.bfloat16)[0] == "triton"
    assert choose("auto", GPU, torch.float8_e4m3fn)[0] == "triton"
    assert choose("sdpa", GPU, torch.bfloat16)[0] == "sdpa"
    assert not caplog.records
    gpu((7, 5))
    assert choose("auto", GPU, torch.float16)[0] == "sdpa"
    assert "several times as long: --attention triton needs a GPU of compute capability 8.0 or more" in caplog.text
    with pytest.raises(OptionError, match=r"compute capability 8.0 .*, but --deterministic needs --attention paged"):
        choose("auto", GPU, torch.float16, deterministic=True)
    monkeypatch.setattr(triton_kernels, "find_spec", lambda name: None)
    assert choose("auto", GPU, torch.float16)[0] == "sdpa"
    assert "needs the package triton, which is not installed" in caplog.text
    caplog.clear()
    assert choose("sdpa", GPU, torch.float16)[0] == "sdpa"
    assert not caplog.records


def test_triton_with_a_fault_leaves_attention_to_sdpa(
    gpu: Callable[[tuple[int, int]], None], caplog: pytest.LogCaptureFixture
) -> None:
    gpu((8, 9))
    asked = list[Attention]()

    def fault(backend: Attention) -> str:
        asked.append(backend)
        return "OutOfResources: shared memory"

    options: dict[str, Any] = {"heads": (32, 8, 128), "fault": fault}
    message = r"^--attention triton does not work here for 32 query heads and 8 key heads of 128 \(OutOfResources: .*\)"
    with pytest.raises(OptionError, match=f"{message}; use --attention sdpa$"):
        choose("triton", GPU, torch.bfloat16, **options)
    assert not caplog.records
    name, backend = choose("auto", GPU, torch.bfloat16, **options)
    assert (name, type(backend)) == ("sdpa", BACKENDS["sdpa"])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "8 key heads of 128 (OutOfResources: shared memory)" in record.message
    with pytest.raises(OptionError, match=f"{message}, but --deterministic needs --attention paged"):
        choose("auto", GPU, torch.bfloat16, deterministic=True, **options)
    with pytest.raises(OptionError, match=r"^--attention triton does not .*, but --kv-dtype fp8 needs "):
        choose("auto", GPU, torch.float8_e4m3fn, **options)
    assert len(asked) == 4
    assert choose("sdpa", GPU, torch.bfloat16, **options)[0] == "sdpa"
    assert len(asked) == 4, "PyTorch is not compared with itself"


def test_heads_that_triton_does_not_serve(
    gpu: Callable[[tuple[int, int]], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Groups of 128 queries would keep their sums in memory; latents divide their 128 heads."""
    gpu((9, 0))
    assert choose("auto", GPU, torch.bfloat16, heads=(64, 1, 64))[0] == "triton"
    assert choose("auto", GPU, torch.bfloat16, heads=(128, 1, 576, 512))[0] == "triton"
    assert not caplog.records
    for heads in ((2, 1, 512), (128, 1, 64)):
        assert choose("auto", GPU, torch.bfloat16, heads=heads)[0] == "sdpa"
        assert "--attention triton serves heads of up to 256 and groups of up to 64 queries" in caplog.text
        caplog.clear()


REFUSALS = {
    ("paged", GPU, torch.float16): "--attention paged runs on a CPU only, the device is cuda; use --attention sdpa",
    ("triton", CPU, torch.float16): "--attention triton runs on a CUDA device, here it is cpu",
    (
        "triton",
        GPU,
        torch.float16,
    ): "--attention triton needs a GPU of compute capability 8.0 or more, this one has 7.5",
    (
        "triton",
        GPU,
        torch.float8_e4m3fn,
    ): "--attention triton keeps keys and values in fp8 on GPUs of compute capability 8.9 or more only",
    (
        "auto",
        CPU,
        torch.float8_e4m3fn,
    ): "--kv-dtype fp8 needs --attention triton (a GPU of compute capability 8.9 or more)",
    ("triton", GPU, torch.int8): "--kv-dtype int8 needs --attention paged (a CPU, compiled kernels), here it is triton",
}


@pytest.mark.parametrize("arguments", REFUSALS, ids=str)
def test_backends_that_cannot_run_say_why(
    gpu: Callable[[tuple[int, int]], None], arguments: tuple[str, torch.device, torch.dtype]
) -> None:
    gpu((7, 5))
    with pytest.raises(OptionError, match=re.escape(REFUSALS[arguments])):
        choose(*arguments)


def test_triton_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="--attention triton needs the package triton, which is not installed"):
        choose("triton", CPU)


def test_deterministic_attention(gpu: Callable[[tuple[int, int]], None]) -> None:
    gpu((8, 0))
    assert choose("auto", GPU, torch.bfloat16, deterministic=True)[0] == "triton"
    assert choose("auto", CPU, torch.bfloat16, kernels=native.needed(), deterministic=True)[0] == "paged"
    with pytest.raises(
        OptionError, match=r"--deterministic needs --attention paged \(a CPU\) or triton \(a GPU\), here"
    ):
        choose("sdpa", GPU, torch.bfloat16, deterministic=True)
    with pytest.raises(OptionError, match="--deterministic needs --attention paged"):
        choose("auto", CPU, torch.bfloat16, deterministic=True)


def test_the_oracle_of_whole_networks() -> None:
    check_rule(ReferenceAttention(), [1, 37, 65], [33, 1, 1, 9], 40, (4, 2))
