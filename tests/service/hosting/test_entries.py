"""The models of a server: from its arguments, and from the file of --models, whose mistakes are named."""

from pathlib import Path
from typing import Any

import pytest

from model.checkpoint.resolve import EMBEDDED
from model.errors import OptionError
from service.hosting.entries import ModelEntry, read_entries
from service.hosting.memory import budget_of
from service.settings import Settings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models.toml"


def entries(path: Path, text: str, **options: object) -> tuple[ModelEntry, ...]:
    path.write_text(text)
    return read_entries(Settings(models=path, **options))  # type: ignore[arg-type]


def one(path: Path, fields: str, **options: object) -> ModelEntry:
    """The entry of a model with the name "chat"."""
    (entry,) = entries(path, f'[[models]]\nname = "chat"\nsource = "org/chat"\n{fields}\n', **options)
    return entry


# From arguments


def test_one_model_is_loaded_at_the_start_and_stays() -> None:
    settings = Settings(model="org/chat", served_model_name=("chat", "alias"))
    assert read_entries(settings) == (ModelEntry(settings, pinned=True, on_demand=False, at_start=True),)


def test_several_arguments_are_several_models_with_the_same_flags() -> None:
    found = read_entries(Settings(model="org/a", more_models=("org/b", "org/c"), max_model_len=64))
    assert [entry.name for entry in found] == [Settings(model=f"org/{name}").names[0] for name in "abc"]
    assert {entry.settings.max_model_len for entry in found} == {64}
    assert all(entry.on_demand and entry.at_start and not entry.pinned for entry in found)
    assert {entry.idle_seconds for entry in found} == {None}


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("served_model_name", ("a",), "--served-model-name"),
        ("lora", ("a=b",), "--lora"),
        ("revision", "main", "--revision"),
        ("chat_template", Path("a.jinja"), "--chat-template"),
    ],
)
def test_a_flag_that_belongs_to_one_model_is_refused_for_several(field: str, value: object, flag: str) -> None:
    with pytest.raises(OptionError, match=f"^{flag} belongs to one model"):
        read_entries(Settings(model="org/a", more_models=("org/b",), **{field: value}))  # type: ignore[arg-type]


def test_the_same_model_twice_needs_names() -> None:
    with pytest.raises(
        OptionError, match=r"the name .* belongs to argument 1 \('org/a'\) and to argument 2 \('org/a'\)"
    ):
        read_entries(Settings(model="org/a", more_models=("org/a",)))


@pytest.mark.parametrize("options", [{"model": "org/a"}, {"more_models": ("org/b",)}])
def test_a_file_and_arguments_exclude_each_other(path: Path, options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=r"^--models .*models.toml names all models"):
        entries(path, f'[[models]]\nsource = "{EMBEDDED}"\n', **options)


# From a file


def test_an_entry_has_its_own_flags_and_those_of_the_command_line(path: Path, tmp_path: Path) -> None:
    """Of all types: numbers, sizes, texts, choices, paths, lists, true and false; with either spelling."""
    (tmp_path / "sql").mkdir()
    entry = one(
        path,
        f"""
        aliases = ["small", "fast"]
        max_model_len = 256
        max-sequences = 3
        target_inter_token_ms = 20
        cache_memory = "1GiB"
        image_cache_memory = 1024
        quantize = "int8"
        attention = "reference"
        deterministic = true
        lora = ["sql={tmp_path / "sql"}"]
        lora_dir = "{tmp_path}"
        revision = "v1"
        """,
        max_model_len=64,
        max_step_tokens=100,
    )
    settings = entry.settings
    assert settings.names == ("chat", "small", "fast") == (entry.name, *settings.names[1:])
    assert settings.model == "org/chat"
    assert (settings.max_model_len, settings.max_sequences, settings.max_step_tokens) == (256, 3, 100)
    assert (settings.cache_memory, settings.image_cache_memory) == (2**30, 1024)
    assert settings.target_inter_token_ms == 20.0
    assert (settings.quantize, settings.attention, settings.revision) == ("int8", "reference", "v1")
    assert settings.deterministic
    assert settings.lora_dir == tmp_path
    assert settings.adapters_given == {"sql": tmp_path / "sql"}


def test_what_an_entry_leaves_out(path: Path) -> None:
    (entry,) = entries(path, '[[models]]\nsource = "org/chat"\n', max_model_len=64)
    assert entry.name == Settings(model="org/chat").names[0]
    assert entry.settings.max_model_len == 64
    assert (entry.pinned, entry.on_demand, entry.at_start, entry.idle_seconds) == (False, True, True, None)


@pytest.mark.parametrize("name", ["idle_unload", "ttl", "idle-unload"])
@pytest.mark.parametrize(("value", "seconds"), [("600", 600.0), ('"10m"', 600.0), ("-1", None), ("0", 0.0)])
def test_idle_unload_has_another_name(path: Path, name: str, value: str, seconds: float | None) -> None:
    entry = one(path, f'{name} = {value}\npin = true\nload = "first-request"')
    assert (entry.idle_seconds, entry.pinned, entry.at_start) == (seconds, True, False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("max_model_len = 0", ("max-model-len", "at least 1", "0")),
        ('max_model_len = "long"', ("max_model_len must be a whole number, at least 1, got 'long'",)),
        ("max_model_len = 1.5", ("max_model_len must be a whole number, at least 1, got 1.5",)),
        ("max_model_len = true", ("max_model_len must be a whole number", "True")),
        ('target_inter_token_ms = "fast"', ("target_inter_token_ms must be a number", "'fast'")),
        ("lora_dir = 1", ("lora_dir must be a path, got 1",)),
        ("revision = 1", ("revision must be a text, got 1",)),
        ('cache_memory = "much"', ("cache_memory", "is not a size", "'much'")),
        ('deterministic = "yes"', ("deterministic must be true or false, got 'yes'",)),
        ('quantize = "int3"', ("quantize", "one of", "int8", "'int3'")),
        ('lora = "sql=dir"', ("lora must be a list of texts, got 'sql=dir'",)),
        ("lora = [1]", ("lora must be a list of texts, got [1]",)),
        ('lora = ["sql"]', ("--lora sql", "NAME=PATH")),
        ('lora = ["chat=dir"]', ("--lora chat=dir", "is the name of the model")),
        ('lora_dir = "/nowhere/at-all"', ("--lora-dir", "/nowhere/at-all")),
        ('chat_template = "/nowhere/a.jinja"', ("--chat-template", "/nowhere/a.jinja")),
        ("max_sequences = 9\nmax_step_tokens = 8", ("--max-sequences 9", "--max-step-tokens 8")),
        ("port = 1", ("'port'", "is a flag of the server")),
        ('model = "other"', ("'model'",)),
        ('served_model_name = ["a"]', ("'served_model_name'",)),
        ("color = 1", ("'color'", "is no field of a model")),
        ('load = "later"', ("load", "start, first-request", "'later'")),
        ("load = 1", ("load", "start, first-request", "1")),
        ('pin = "yes"', ("pin", "true or false", "'yes'")),
        ('aliases = "small"', ("aliases", "list of names", "'small'")),
        ('aliases = [""]', ("aliases", "list of names", "['']")),
        ('idle_unload = "soon"', ("idle_unload", "must be seconds", "soon")),
        ("ttl = true", ("ttl", "must be seconds", "true")),
        ("ttl = 1\nidle_unload = 1", ("idle_unload and ttl",)),
        ("max-model-len = 1\nmax_model_len = 2", ("max_model_len", "twice")),
        ('adapters = [[1, "a"]]', ("'adapters'", "is no field of a model")),
        ("load_timeout = 0", ("--load-timeout", "at least 1", "0")),
    ],
)
def test_a_mistake_in_an_entry_is_named(path: Path, fields: str, words: tuple[str, ...]) -> None:
    """With the file, the model, the field and the value, on one line."""
    with pytest.raises(OptionError) as raised:
        one(path, fields)
    message = str(raised.value)
    assert message.startswith(f"--models {path}: model 'chat': ")
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[models]]\nname = "a"\n', ("model 'a'", "source must name a model")),
        ('[[models]]\nname = "a"\nsource = ""\n', ("model 'a'", "source must name a model", "''")),
        ('[[models]]\nname = "a"\nsource = 1\n', ("model 'a'", "source must name a model", "1")),
        ('[[models]]\nname = 1\nsource = "org/a"\n', ("model 1", "name must be text", "1")),
        ('[[models]]\nname = " "\nsource = "org/a"\n', ("model ' '", "name must be text")),
        ('[[models]]\nsource = "org/a"\n[[models]]\nsource = "org/b"\naliases = ["c"]\n', ("model 2", "aliases need")),
        ("models = [1]\n", ("model 1", "expected fields", "int")),
        ("models = []\n", ("[[models]]",)),
        ("", ("[[models]]",)),
        ('[models]\nsource = "org/a"\n', ("[[models]]",)),
        ('port = 1\n[[models]]\nsource = "org/a"\n', ("[[models]]", "nothing beside")),
        ("[[models]\n", ("not valid TOML", "line 1")),
    ],
)
def test_a_mistake_in_the_file_is_named(path: Path, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(OptionError) as raised:
        entries(path, text)
    message = str(raised.value)
    assert message.startswith(f"--models {path}: ")
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(OptionError, match=r"^--models .*models.toml: cannot be read \(FileNotFoundError\)"):
        read_entries(Settings(models=path))
    path.write_bytes(b"\xff")
    with pytest.raises(OptionError, match=r"^--models .*models.toml: cannot be read \(UnicodeDecodeError\)"):
        read_entries(Settings(models=path))


@pytest.mark.parametrize(
    "other",
    [
        'name = "chat"',
        'name = "b"\naliases = ["chat"]',
        'name = "b"\naliases = ["small"]',
        'name = "b"\naliases = ["b"]',
        'name = "b"\nlora = ["small={folder}"]',
        'name = "b"\nlora = ["sql={folder}"]',
    ],
)
def test_names_that_collide(path: Path, tmp_path: Path, other: str) -> None:
    """Of models, of aliases and of adapters: a request names one model only."""
    first = f'[[models]]\nname = "chat"\naliases = ["small"]\nsource = "org/a"\nlora = ["sql={tmp_path}"]\n'
    words = (
        r"^--models .*models.toml: the name '(chat|small|b|sql)' belongs to entry [12] .* and to entry 2 \('org/b'\)"
    )
    with pytest.raises(OptionError, match=words):
        entries(path, f'{first}[[models]]\nsource = "org/b"\n{other.format(folder=tmp_path)}\n')


def test_one_source_under_two_names(path: Path) -> None:
    text = "".join(
        f'[[models]]\nname = "{name}"\nsource = "org/a"\nmax_model_len = {n}\n' for name, n in (("a", 1), ("b", 2))
    )
    assert [(entry.name, entry.settings.max_model_len) for entry in entries(path, text)] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("flags", "name"), [({"memory_budget": 2**30}, "--memory-budget"), ({"load_timeout": 9.0}, "--load-timeout")]
)
def test_a_flag_of_several_models_is_refused_with_one(flags: dict[str, Any], name: str) -> None:
    with pytest.raises(OptionError, match=f"^{name} needs several models"):
        read_entries(Settings(**flags))
    assert len(read_entries(Settings(more_models=("/other",), **flags))) == 2


def test_a_gpu_of_unknown_memory_needs_a_budget() -> None:
    with pytest.raises(OptionError, match="--memory-budget"):
        budget_of(Settings(device="cuda"))
    assert budget_of(Settings(device="cuda", memory_budget=5)) == 5
