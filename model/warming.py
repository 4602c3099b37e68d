"""The first steps of a runner, so that no request waits for initialization. They find weights that give no numbers."""

from model.batch import PageTable, Runner, Slice, StepBatch
from model.errors import ModelError
from model.image_spans import ImageWork
from model.sampling_params import SamplingParams


def first_steps(runner: Runner) -> None:
    """Compute a text and encode an image. Raises ModelError if that does not work."""
    _first_text(runner)
    _first_image(runner)


def _first_text(runner: Runner) -> None:
    """Run a prompt, then its last token alone: prefill and decode use different kernels.

    Raises ModelError if logits are not finite.
    """
    info = runner.info
    n = min(info.page_size, info.max_model_len)
    tables = tuple(PageTable(0, range(pool.n_pages)) for pool in info.pools)
    for start in (0, n - 1):
        item = Slice(0, [0] * n, n, start, n, tables, SamplingParams(max_tokens=1))
        (output,) = runner.launch(StepBatch((item,)))().slices
        if output.ends:
            raise ModelError("the model's logits are not finite; download it again, or choose --dtype float32")


def _first_image(runner: Runner) -> None:
    """Encode the smallest image. Raises ModelError if the encoder does not work."""
    if (form := runner.info.images) is None:
        return
    n_patches = form.n_patches(1, 1)
    work = ImageWork(0, 1, 1, bytes(form.n_bytes(1, 1)), 0, n_patches, n_patches)
    faults = runner.launch(StepBatch((), images=(work,)))().image_faults
    runner.launch(StepBatch((), forgotten=(work.image,)))()
    if faults:
        raise ModelError(f"no image can be encoded: {faults[work.image]}")
