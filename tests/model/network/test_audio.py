"""The audio encoder, and text models with its embeddings. Oracle: transformers."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import VoxtralConfig, VoxtralForConditionalGeneration

from model.attention.encoder import CompiledEncoderAttention
from model.kernels.cpu import native
from model.network import encoding as pieces
from model.network.audio.encoder import AudioEncoder, sinusoids
from model.network.transformer import Transformer
from tests.model import voxtral
from tests.model.checkpoint import quantized_files
from tests.model.driving import MediaDriver, loaded
from tests.model.voxtral import AUDIO, BEGIN_AUDIO

Saved = Callable[[str], Path]
FORMS = {"hf": voxtral.save_hf, "native": voxtral.save_native}
TOKENS = 375


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    @cache
    def made(form: str) -> Path:
        return FORMS[form](tmp_path_factory.mktemp(form))

    return made


def network(directory: Path, scheme: str = "none") -> Transformer:
    model = loaded(directory, scheme)
    assert isinstance(model.encoder, AudioEncoder)
    return model


def spectrum(seed: int = 0) -> Tensor:
    """A chunk [128, 3000] that no recording has."""
    return torch.randn(128, 3000, generator=torch.Generator().manual_seed(seed))


def raw(mel: Tensor) -> bytes:
    return mel.contiguous().numpy().tobytes()


@pytest.mark.parametrize("form", FORMS)
@torch.inference_mode()
def test_embeddings_are_those_of_transformers(form: str, saved: Saved) -> None:
    chunks = torch.stack((spectrum(), spectrum(1)))
    expected = voxtral.build().model.get_audio_features(chunks, return_dict=True).pooler_output
    ours = network(saved(form)).encoder
    assert ours is not None
    found = torch.cat([ours(raw(chunk), 1, TOKENS) for chunk in chunks])
    assert found.shape == expected.shape == (2 * TOKENS, 64)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_positions_that_a_file_does_not_have_are_those_of_whisper() -> None:
    table = voxtral.build().model.audio_tower.embed_positions.weight.detach()
    torch.testing.assert_close(sinusoids(1500, 32, table.device, table.dtype), table, atol=1e-6, rtol=0)


def prompt(n_chunks: int) -> Iterator[int]:
    yield from (1, 3, BEGIN_AUDIO, *[AUDIO] * (TOKENS * n_chunks), 60, 61, 62, BEGIN_AUDIO)
    yield from (*[AUDIO] * TOKENS, 4)


@pytest.mark.parametrize("chunk", [2000, 70])
@pytest.mark.parametrize("form", FORMS)
def test_log_probabilities_with_audio_are_those_of_transformers(form: str, chunk: int, saved: Saved) -> None:
    """Two recordings, of which the first lasts two chunks."""
    model, tokens = network(saved(form)), list(prompt(2))
    chunks = torch.stack([spectrum(seed) for seed in range(3)])
    with torch.no_grad():
        expected = voxtral.build()(input_ids=torch.tensor([tokens]), input_features=chunks).logits[0]
    assert model.encoder is not None
    embeddings = torch.cat([model.encoder(raw(each), 1, TOKENS) for each in chunks])
    found = MediaDriver(model, AUDIO, embeddings).log_probabilities(tokens, chunk)
    torch.testing.assert_close(found, expected.log_softmax(-1), atol=1e-4, rtol=0)
    other = MediaDriver(model, AUDIO, embeddings.flip(0)).log_probabilities(tokens, chunk)
    assert (other - found).abs().max() > 0.1  # audio matters


@pytest.mark.parametrize("tile", [100, 375, 1500])
@torch.inference_mode()
def test_tiles_do_not_change_bits(tile: int, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tile computes the rows of the first convolution that it needs."""
    ours = network(saved("native"), "int8").encoder
    assert ours is not None
    whole = ours(raw(spectrum()), 1, TOKENS)
    monkeypatch.setattr(pieces, "TILE", tile)
    assert ours.begin(raw(spectrum()), 1, TOKENS).n_units == -(-1500 // tile) * 5 + -(-TOKENS // tile)
    assert torch.equal(ours(raw(spectrum()), 1, TOKENS), whole)


@pytest.mark.each
@pytest.mark.parametrize("scheme", ["int8", "bfloat16"])
@pytest.mark.parametrize("variant", native.available())
@torch.inference_mode()
def test_threads_steps_and_other_audio_do_not_change_bits(
    variant: str, scheme: str, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORIA_KERNELS", variant)
    ours = network(saved("hf"), scheme).encoder
    assert ours is not None
    before = native.use_threads(1)
    try:
        whole = ours(raw(spectrum()), 1, TOKENS)
        assert whole.isfinite().all()
        for n_threads, step in ((2, 1500), (3, 190)):
            assert native.use_threads(n_threads) == n_threads
            encoding, other = (ours.begin(raw(spectrum(seed)), 1, TOKENS) for seed in (0, 1))
            assert isinstance(encoding.attention, CompiledEncoderAttention)
            for stop in range(step, encoding.n_patches + step, step):
                for each in (encoding, other):
                    ours.advance(each, min(stop, encoding.n_patches))
            assert torch.equal(encoding.embeddings, whole)
            assert not torch.equal(other.embeddings, whole)
    finally:
        native.use_threads(before)


@pytest.mark.parametrize("name", ["ct int4 g32", "gptq g128", "fp8 tensor", "ct int8 channel"])
@torch.inference_mode()
def test_a_quantized_text_model_has_an_encoder_that_is_not(name: str, tmp_path: Path) -> None:
    quantized_files.save(name, tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    config = VoxtralConfig(
        text_config={"model_type": "mistral", **quantized_files.SIZES}, audio_config={**voxtral.ENCODER}
    )
    theirs = VoxtralForConditionalGeneration(config).eval()
    tensors = load_file(tmp_path / "model.safetensors")
    audio = {key: value for key, value in theirs.model.state_dict().items() if not key.startswith("language_model")}
    save_file({**tensors, **audio}, tmp_path / "model.safetensors")
    outer = {"text_config": text, "quantization_config": text.pop("quantization_config")}
    (tmp_path / "config.json").write_text(json.dumps(json.loads(config.to_json_string()) | outer))
    expected = theirs.model.get_audio_features(spectrum()[None], return_dict=True).pooler_output
    for scheme, limit in (("none", 1 - 1e-5), ("int8", 0.98)):
        ours = network(tmp_path, scheme).encoder
        assert ours is not None
        assert torch.cosine_similarity(ours(raw(spectrum()), 1, TOKENS), expected, dim=1).min() > limit


def test_a_spectrum_of_another_size_is_refused(saved: Saved) -> None:
    ours = network(saved("hf")).encoder
    assert ours is not None
    with pytest.raises(ValueError, match=r"1 x 375 tokens and a spectrum \[128, 3000\] in float32, got 1 x 375 tokens"):
        ours.begin(raw(spectrum()[:, :2999]), 1, TOKENS)


def test_the_number_of_weights_is_that_of_transformers(saved: Saved) -> None:
    for form in FORMS:
        model = network(saved(form))
        config, theirs = model.config, sum(each.numel() for each in voxtral.build().parameters())
        table = 0 if form == "hf" else 1500 * 32
        assert config.n_parameters == theirs - table
