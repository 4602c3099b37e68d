"""What images take: by hand for published models, and as planned for a model that is loaded."""

from pathlib import Path
from typing import Any

import pytest

from model import loading
from model.checkpoint.config import read_config
from model.errors import OptionError
from model.linear.schemes import SCHEMES, encoder_slowness
from model.media import ImageFormat
from model.memory.media import media_sizes
from model.memory.plan import make_plan
from model.options import RunnerOptions
from tests.model import pixtral
from tests.model.checkpoint.published import written
from tests.model.driving import storages, tiny

MIB = 2**20


def options(**values: Any) -> RunnerOptions:
    return RunnerOptions("", **values)


@pytest.mark.parametrize(
    ("name", "value_bytes", "expected", "tokens", "encoding"),
    [
        # 256 MiB / (5120 * 2); 4096 patches of 4 * 1024 bf16 values, 64 float32, 768 pixels and a number
        ("Pixtral 12B", 2, ImageFormat(16, 1, 1024, 17), 26214, 4096 * (4 * 1024 * 2 + 4 * 64 + 768 + 8)),
        # 12,100 patches of 588 bytes become 3025 tokens of 5120 float32 values
        (
            "Small 3.2, Devstral, Magistral",
            4,
            ImageFormat(14, 2, 1540, 22),
            13107,
            12100 * (4 * 1024 * 4 + 4 * 64 + 588 + 8),
        ),
    ],
)
def test_published_models(
    name: str, value_bytes: int, expected: ImageFormat, tokens: int, encoding: int, tmp_path: Path
) -> None:
    sizes = media_sizes(read_config(written(name, tmp_path)), options(), value_bytes)
    assert sizes is not None
    assert (sizes.format, sizes.tokens, sizes.encoding) == (expected, tokens, encoding)
    assert 0 <= 256 * MIB - sizes.cache < 5120 * value_bytes


def test_patches_of_a_token_by_hand(tmp_path: Path) -> None:
    """Multiplications in Ministral 3 3B: a layer of 3072 x (2 * 4096 + 2 * 1024) and 3 * 3072 * 9216, 26 times.

    A patch is multiplied with all weights of the encoder and, in each of 24 layers, with 2 * 12,100 vectors of 1024.
    """
    config = read_config(written("Ministral 3 3B", tmp_path))
    token = 26 * (3072 * (2 * 4096 + 2 * 1024) + 3 * 3072 * 9216 + 2 * 3072) + 3072
    assert config.n_active_parameters == token
    assert config.vision is not None
    patch = config.vision.n_parameters(3072) + 24 * 2 * 12_100 * 1024
    sizes = media_sizes(config, options(), 2)
    assert sizes is not None
    assert sizes.format.patches_per_token == round(token / patch) == 3


def test_a_patch_costs_more_where_the_encoder_multiplies_slowly(tmp_path: Path) -> None:
    """Where the encoder multiplies half as fast, 1.3 patches take as long as a token, not 2.6."""
    config = read_config(written("Ministral 3 3B", tmp_path))
    found = [media_sizes(config, options(), 2, encoder_slowness(SCHEMES[name])) for name in ("int8", "bfloat16")]
    assert [sizes.format.patches_per_token for sizes in found if sizes] == [1, 3]


def test_the_memory_of_embeddings_may_be_chosen(tmp_path: Path) -> None:
    config = read_config(written("Ministral 3 8B", tmp_path))
    largest = 55 * 55 * 4096 * 2
    sizes = media_sizes(config, options(image_cache_memory=largest), 2)
    assert sizes is not None
    assert (sizes.tokens, sizes.cache) == (3025, largest)
    with pytest.raises(
        OptionError, match=r"--image-cache-memory .* is less than the embeddings of one image of 1540 x 1540"
    ):
        media_sizes(config, options(image_cache_memory=largest - 1), 2)
    with pytest.raises(OptionError, match="--image-cache-memory needs a model that takes images or audio"):
        media_sizes(tiny(), options(image_cache_memory=largest), 2)
    assert media_sizes(tiny(), options(), 2) is None


def test_two_large_images_fit_by_default(tmp_path: Path) -> None:
    """Medium 3.5's embeddings have 12,288 values: two images take 2 * 3025 * 12,288 * 4 bytes, more than 256 MiB."""
    sizes = media_sizes(read_config(written("Medium 3.5 shape", tmp_path)), options(), 4)
    assert sizes is not None
    assert (sizes.tokens, sizes.cache) == (6050, 2 * 3025 * 12_288 * 4)


@pytest.mark.parametrize("values", [{"dtype": "float32"}, {"quantize": "int4"}], ids=str)
@pytest.mark.parametrize("kind", pixtral.KINDS)
def test_the_runner_does_as_planned(
    kind: str, values: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = pixtral.save_hf(kind, tmp_path)
    requested = RunnerOptions(str(directory), device="cpu", image_cache_memory=MIB, **values)  # type: ignore[arg-type]
    monkeypatch.setattr(loading, "free_bytes", lambda _: 32 * MIB)
    runner = loading.create(
        lambda *_: None, **{**values, "model": str(directory), "device": "cpu", "image_cache_memory": MIB}
    )
    plan = make_plan(directory, requested, 32 * MIB)
    assert (runner.info.media_tokens, plan.media_tokens) == (MIB // (64 * 4),) * 2
    assert runner.info.images == ImageFormat(*((14, 2, 140) if kind == "mistral3" else (16, 1, 128)), 1)
    assert [(pool.window, pool.n_pages) for pool in plan.pools] == [
        (pool.window, pool.n_pages) for pool in runner.info.pools
    ]
    assert 0 < plan.encoder < plan.weights
    assert storages(runner.head.model) == pytest.approx(plan.weights, rel=0.1)
    monkeypatch.setattr(loading, "free_bytes", lambda _: plan.weights + plan.media - 1)
    with pytest.raises(OptionError, match=r"images need .* beside the weights, this machine has .* free"):
        loading.create(
            lambda *_: None, **{**values, "model": str(directory), "device": "cpu", "image_cache_memory": MIB}
        )
