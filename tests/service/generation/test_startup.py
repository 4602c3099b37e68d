"""The loading of a model: what fails first ends the start, and defaults in its files are checked once."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from model.checkpoint.generation_config import GenerationDefaults
from model.errors import ModelError, NoriaError, OptionError
from model.options import RunnerOptions
from service.generation.served import ServedModel, longest_piece
from service.generation.startup import load_served
from service.settings import Settings
from tests.fakes import VOCAB, IntegerTokenizer, make_info
from tests.model.checkpoint.gguf_files import new_file, write


class Client:
    """An engine's client whose network never ends loading, or fails."""

    def __init__(self, error: NoriaError | None = None) -> None:
        self.info = None
        self.error = error
        self.ended = False

    def note(self, stage: str, progress: float) -> None:
        pass

    async def start(self, options: Any, renew: Any) -> None:
        try:
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        finally:
            self.ended = True


@pytest.fixture
def model(tmp_path: Path) -> Settings:
    """A model whose tokenizer is damaged."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "model.safetensors").touch()
    return Settings(model=str(tmp_path))


def load(settings: Settings, client: Client) -> None:
    asyncio.run(asyncio.wait_for(load_served(settings, client), 20))  # type: ignore[arg-type]


def test_a_broken_tokenizer_does_not_wait_for_the_network(model: Settings) -> None:
    client = Client()
    with pytest.raises(ModelError, match="tokenizer"):
        load(model, client)
    assert client.ended


def test_a_network_that_fails_does_not_wait_for_the_tokenizer(model: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr("service.generation.startup.load_text_side", lambda *_: never.wait())
    with pytest.raises(OptionError, match="too small"):
        load(model, Client(OptionError("too small")))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"tensor_parallel_size": 64},
            "--tensor-parallel-size 64 does not divide 9 heads and 3 heads of keys and values; choose one of: 1, 3",
        ),
        ({"pipeline_parallel_size": 31}, "--pipeline-parallel-size 31 is more than the model's 30 layers"),
        ({"expert_parallel": True}, "--expert-parallel needs a model with experts, this one has none"),
    ],
    ids=str,
)
def test_ranks_that_cannot_share_the_model_do_not_start(flags: dict[str, Any], message: str) -> None:
    """The check needs the configuration alone. It comes before an engine, which starts the other ranks at once."""
    settings = Settings(**flags)
    client = Client()
    with pytest.raises(OptionError, match=message):
        load(settings, client)
    assert not client.ended


def serve(ends: tuple[Any, ...] = (), **sampling: Any) -> ServedModel:
    tokenizer = IntegerTokenizer()
    defaults = GenerationDefaults(ends, sampling)
    return ServedModel(("fake",), tokenizer, None, defaults, longest_piece(tokenizer), make_info())


@pytest.mark.parametrize(
    ("ends", "sampling", "words"),
    [
        ((), {"temperature": 3.0}, ["temperature", "3.0", "2"]),
        ((), {"temperature": "hot"}, ["temperature", '"hot"']),
        ((), {"temperature": float("nan")}, ["temperature", "NaN"]),
        ((), {"top_k": 50.5}, ["top_k", "integer", "50.5"]),
        ((), {"top_k": True}, ["top_k", "true"]),
        ((), {"top_p": 1.1}, ["top_p", "1.0", "1.1"]),
        ((2, VOCAB), {}, ["eos_token_id", "256", "0..255"]),
        (("</s>",), {}, ["eos_token_id", '"</s>"']),
    ],
)
def test_bad_generation_defaults_are_one_line(
    ends: tuple[Any, ...], sampling: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        serve(ends, **sampling)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


def test_good_generation_defaults_pass() -> None:
    served = serve((2, VOCAB - 1), temperature=1, top_p=0.9, top_k=50, min_p=0.0, repetition_penalty=1.1)
    assert served.max_prompt_bytes == 5 * 128  # "<end>" is the longest token


def test_what_is_doubtful_about_a_models_files_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = new_file(tmp_path / "model.gguf", "mistral3")
    writer.add_attn_temperature_scale(0.1)
    writer.add_attn_temperature_length(64)
    write(writer)

    class Ready(Client):
        async def start(self, options: Any, renew: Any) -> None:
            self.info = make_info()

    load(Settings(model=str(tmp_path / "model.gguf")), Ready())
    (record,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert record.message.startswith("model.gguf has a context of 128 tokens without the keys of YaRN: ")


def test_the_served_model_has_the_names_of_the_options_and_the_files_defaults(tmp_path: Path) -> None:
    write(new_file(tmp_path / "model.gguf"))
    info = make_info()

    class Ready(Client):
        async def start(self, options: Any, renew: Any) -> None:
            self.info = info

    settings = Settings(model=str(tmp_path / "model.gguf"), served_model_name=("one", "other"))
    served = asyncio.run(load_served(settings, Ready()))  # type: ignore[arg-type]
    assert (served.names, served.info) == (("one", "other"), info)
    assert served.longest_piece == longest_piece(served.tokenizer)
    assert served.source is not None
    assert served.source[0] == tmp_path / "model.gguf"


def test_every_engine_gets_the_template_that_the_service_has_read(tmp_path: Path) -> None:
    """The file may have gone, or have another text, when an engine dies."""
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}")
    write(new_file(tmp_path / "model.gguf"))
    found = []

    class Ready(Client):
        async def start(self, options: Any, renew: Any) -> None:
            template.unlink()
            found.extend([options, await renew()])
            self.info = make_info()

    load(Settings(model=str(tmp_path / "model.gguf"), chat_template=template), Ready())
    assert found[0] == found[1]
    assert RunnerOptions(**found[1]).template == "{{ messages[0].content }}"
