"""The first steps of a runner, so that no request waits for initialization. They find weights that give no numbers."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from model.batch import PageTable, Runner, RunnerInfo, Slice, StepBatch
from model.checkpoint.files import Progress
from model.errors import ModelError, OptionError, one_line
from model.kernels import cuda
from model.media import MediaWork
from model.network.adapters import blank
from model.network.kernels import row_counts
from model.network.transformer import Transformer
from model.sampling_params import SamplingParams
from model.setup import Setup
from model.step.executors.graphs import CudaCapture, GraphExecutor, StepGraphs
from model.step.executors.torch import TorchExecutor
from model.step.runner import ModelRunner

SAMPLINGS: Sequence[Mapping[str, Any]] = (
    {},
    {"temperature": 0.0},
    {"top_p": 0.5, "top_k": 2, "min_p": 0.5, "logprobs": 1, "prompt_logprobs": 1},
)
"""Sampling parameters: none, of a greedy row, and one of each stage that has kernels."""
ONE_TOKEN = SamplingParams(max_tokens=1)
BLANK = -1
"""The number of an adapter of zeros, of the first steps."""


def warm(runner: ModelRunner, setup: Setup, progress: Progress) -> None:
    """Run the first steps. On a GPU compile all kernels and capture all graphs, but with `fast_start` do so later.

    Raises OptionError for a kernel that does not compile for this GPU, or does not fit it.
    """
    complete = setup.device.type == "cuda" and not setup.options.fast_start
    try:
        first_steps(runner)
        if complete:
            compile_all(runner, runner.head.model, progress)
    except Exception as error:
        if not cuda.failed(error):
            raise
        raise OptionError(
            f"--attention {setup.attention_name}, --quantize {setup.scheme.quantize}: a kernel does not work on this "
            f"GPU ({type(error).__name__}: {one_line(error)}); choose another, and report this"
        ) from error
    if setup.captures:  # only now: the greatest graph should be the first
        assert isinstance(runner.executor, TorchExecutor)
        runner.executor = executor = GraphExecutor(runner.executor, setup.pool_sizes.max_sequences, CudaCapture())
        if complete:
            capture_all(executor.graphs, progress)


def first_steps(runner: Runner) -> None:
    """Compute a text and encode a media item. Raises ModelError if that does not work."""
    _first_text(runner)
    _first_media(runner)


def compile_all(runner: Runner, model: Transformer, progress: Progress) -> None:
    """Compute steps of so many rows that serving compiles no kernel any more. Nobody reads their results."""
    counts = row_counts(model, runner.info.max_step_tokens)
    batches = list(steps(runner.info, counts))
    if isinstance(runner, ModelRunner):  # ranks have no adapters
        runner.adapters.hold(BLANK, blank(model))
        batches += [step(runner.info, [n], adapter=BLANK) for n in _possible(runner.info, counts)]
    for done, batch in enumerate(batches):
        progress("compiling kernels", done / len(batches))
        runner.launch(batch)()
    if isinstance(runner, ModelRunner):
        runner.adapters.unload(BLANK)


def capture_all(graphs: StepGraphs, progress: Progress) -> None:
    """Capture all graphs."""
    total = len(graphs.missing)
    while missing := len(graphs.missing):
        progress(f"capturing CUDA graph {total - missing + 1} of {total}", (total - missing) / total)
        graphs.capture_next()


def steps(info: RunnerInfo, counts: Sequence[int]) -> Iterator[StepBatch]:
    """Yield steps of each number of rows: of a prompt alone, and with a token of another sequence.

    Then steps of one token: of the longest sequence, and with each of SAMPLINGS.
    """
    for n_rows in _possible(info, counts):
        yield step(info, [n_rows])
        if n_rows > 1 and len((mixed := step(info, [n_rows - 1, 1])).slices) <= info.max_sequences:
            yield mixed
    yield step(info, [1], before=info.max_model_len - 1)
    for values in SAMPLINGS:
        yield step(info, [min(2, info.max_model_len)], SamplingParams(max_tokens=1, **values))


def step(
    info: RunnerInfo, lengths: Sequence[int], params: SamplingParams = ONE_TOKEN, *, before: int = 0, adapter: int = 0
) -> StepBatch:
    """Make a step with a slice of each of these lengths, after `before` tokens; one that is too long becomes several.

    All share the pages of each pool, because nobody reads what they write. No request has a number below 0.
    """
    most = info.max_model_len - before
    lengths = [min(most, n - first) for n in lengths for first in range(0, n, most)]
    return StepBatch(
        tuple(_slice(info, -number, before, before + n, params, adapter) for number, n in enumerate(lengths, 1))
    )


def _slice(info: RunnerInfo, number: int, start: int, stop: int, params: SamplingParams, adapter: int) -> Slice:
    n_blocks = -(-stop // info.page_size)
    pages = (array("q", [block % pool.n_pages for block in range(n_blocks)]) for pool in info.pools)
    tables = tuple(PageTable(0, of_pool) for of_pool in pages)
    return Slice(number, [0] * stop, stop, start, stop, tables, params, adapter=adapter)


def _possible(info: RunnerInfo, counts: Sequence[int]) -> list[int]:
    """Return those that a step can have."""
    return [n for n in counts if n <= min(info.max_step_tokens, info.max_sequences * info.max_model_len)]


def _first_text(runner: Runner) -> None:
    """Run a prompt, then its last token alone: prefill and decode use different kernels.

    Raises ModelError if logits are not finite.
    """
    info = runner.info
    n = min(info.page_size, info.max_model_len)
    for lengths, before in (([n], 0), ([1], n - 1)):
        (output,) = runner.launch(step(info, lengths, before=before))().slices
        if output.ends:
            raise ModelError("the model's logits are not finite; download it again, or choose --dtype float32")


def _first_media(runner: Runner) -> None:
    """Encode the smallest image, or silence. Raises ModelError if the encoder does not work."""
    if (form := runner.info.media) is None:
        return
    n_patches = form.n_patches(*form.smallest)
    work = MediaWork(0, *form.smallest, bytes(form.n_bytes(*form.smallest)), 0, n_patches, n_patches)
    faults = runner.launch(StepBatch((), media=(work,)))().media_faults
    runner.launch(StepBatch((), forgotten=(work.number,)))()
    if faults:
        raise ModelError(f"the encoder does not work: {faults[work.number]}")
