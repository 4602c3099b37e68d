"""`tekken.json`: special tokens as the file has them, damaged files, long white space, and which file comes first."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.errors import ModelError, ParameterError
from model.grammar.archive import pack, unpack
from model.tokenizers.load import load_tokenizer, mistral_tokenizer_file, tokenizer_file
from tests.model.tokenizers.kinds import KINDS, Mistral
from tests.model.tokenizers.tekken_files import N_SPECIAL, SMALL, SPECIAL, tekken_content, write_tekken
from tests.model.tokenizers.vocabularies import V1, V3


@pytest.mark.parametrize(
    "options",
    [
        {"special": SPECIAL["v13"]},
        {"special": SPECIAL["v13"][::-1]},
        {"special": SPECIAL["v13"], "n_special": len(SPECIAL["v13"])},
        {"special": [*SPECIAL["v13"], *(f"[MORE_{number}]" for number in range(1200))], "n_special": 1300},
        {"special": [{"rank": 35 - rank, "token_str": name} for rank, name in enumerate(SPECIAL["v13"])]},
    ],
    ids=["as published", "in another order", "no others", "more than 1000", "listed backwards"],
)
def test_special_tokens_have_the_ranks_of_the_file(options: dict[str, Any], tmp_path: Path) -> None:
    write_tekken(tmp_path, "v13", **options)
    mine, library = load_tokenizer(tmp_path), Mistral(tmp_path)
    assert len(mine.control) == options.get("n_special", N_SPECIAL)
    assert mine.vocab_size == SMALL + len(mine.control)
    for name, token in mine.control.items():
        assert token == library.special(name)
        assert mine.encode(f"a{name}b", add_bos=False, parse_control=True)[1] == token
    assert (mine.bos_id, mine.eos_id) == (library.special("<s>"), library.special("</s>"))
    assert mine.encode("a b", add_bos=False, parse_control=True) == library.encode("a b")


def test_a_rank_without_a_name_is_called_by_its_number(tmp_path: Path) -> None:
    special = [{"rank": 3, "token_str": "<s>"}, {"rank": 0, "token_str": "[INST]"}]
    write_tekken(tmp_path, "v13", special=special, n_special=5)
    mine = load_tokenizer(tmp_path)
    assert mine.control == {"[INST]": 0, "<SPECIAL_1>": 1, "<SPECIAL_2>": 2, "<s>": 3, "<SPECIAL_4>": 4}
    assert (mine.bos_id, mine.eos_id) == (3, None)
    assert mine.encode("a", add_bos=True, parse_control=False) == [3, 5 + ord("a")]


def _config(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["config"].update(changes)


def _special(*changes: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["special_tokens"].extend(changes)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda content: content.pop("config"), "it has no 'config'"),
        (lambda content: content.pop("vocab"), "it has no 'vocab'"),
        (lambda content: content["config"].pop("pattern"), "it has no 'pattern'"),
        (_config(default_vocab_size=4000), "it has 1256 tokens, its default_vocab_size needs 3000, at least 256"),
        (_config(default_vocab_size=1100), "it has 100 tokens, its default_vocab_size needs 100, at least 256"),
        (_config(default_vocab_size="many"), "invalid literal for int() with base 10: 'many'"),
        (lambda content: content["vocab"].pop(300), "vocab[300] has rank 301, expected 300"),
        (lambda content: content["vocab"][9].update(token_bytes="AAA="), "its first 256 tokens are not the 256 bytes"),
        (lambda content: content["vocab"][300].update(token_bytes="AA=="), "two of its tokens have the same bytes"),
        (lambda content: content["vocab"][300].update(token_bytes="A"), "Invalid base64-encoded string"),
        (
            _special({"rank": 1000, "token_str": "[NEW]"}),
            "special token '[NEW]' has rank 1000; each needs a name and a rank of its own below "
            "default_num_special_tokens, 1000",
        ),
        (_special({"rank": 1, "token_str": "[NEW]"}), "special token '[NEW]' has rank 1; each needs a name and a rank"),
        (_special({"rank": 40, "token_str": ""}), "special token '' has rank 40; each needs a name and a rank"),
        (_special({"rank": 40, "token_str": "</s>"}), "two of its special tokens have the same name"),
        (_config(pattern="("), "Opening parenthesis without closing parenthesis"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], object], problem: str, tmp_path: Path
) -> None:
    content = json.loads(json.dumps(tekken_content("v13")))
    change(content)
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    with pytest.raises(ModelError) as caught:
        load_tokenizer(tmp_path)
    message = str(caught.value)
    assert message.startswith("tekken.json is not a Tekken tokenizer: ")
    assert message.endswith("; download it again")
    assert problem in message
    assert "\n" not in message


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tekken(tmp_path, "v3")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(ModelError, match=r"^tekken\.json needs the package tiktoken; install mistral-common$"):
        load_tokenizer(tmp_path)
    path.write_text("{")
    with pytest.raises(ModelError, match=r"^the model's tekken\.json cannot be read: "):
        load_tokenizer(tmp_path)


def test_loading_imports_neither_torch_nor_mistral_common(tmp_path: Path) -> None:
    """Either would take longer than the tokenizer, in the service and in the process that compiles grammars."""
    write_tekken(tmp_path, "v13")
    code = (
        "import sys; from pathlib import Path; from model.tokenizers.load import load_tokenizer; "
        "load_tokenizer(Path(sys.argv[1])); print(sorted({'torch', 'mistral_common'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


LONG = (
    " " * 90_000,
    "\n\t" * 50_000 + " " * 90_000 + "x",
    "!" + "\n" * 9 + " " * 90_000 + "\r\n",
    "a" + " \n" * 90_000,
)


@pytest.mark.parametrize("text", LONG, ids=["spaces", "tabs before", "punctuation before", "line breaks"])
def test_long_white_space_has_the_ids_of_mistral_common(text: str, tmp_path: Path) -> None:
    write_tekken(tmp_path, "v13")
    mine = load_tokenizer(tmp_path)
    assert mine.encode(text, add_bos=False, parse_control=False) == Mistral(tmp_path).encode(text)


def test_more_white_space_than_the_pattern_can_search(tmp_path: Path) -> None:
    """tiktoken raises an error for it, and mistral-common with it."""
    write_tekken(tmp_path, "v13")
    text = " " * 1_200_000 + "x"
    with pytest.raises(ValueError, match="stack size"):
        Mistral(tmp_path).encode(text)
    with pytest.raises(ParameterError, match=r"^the model's tokenizer cannot divide this text .*stack size"):
        load_tokenizer(tmp_path).encode(text, add_bos=False, parse_control=False)


def test_another_pattern_divides_words_in_its_way(tmp_path: Path) -> None:
    content = tekken_content("v13")
    content["config"] = {**content["config"], "pattern": r"\s+(?!\S)|\s+|\S+"}
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    text = "a word, an other  word\n" * 9
    assert load_tokenizer(tmp_path).encode(text, add_bos=False, parse_control=False) == Mistral(tmp_path).encode(text)


def test_tekken_comes_first(tmp_path: Path) -> None:
    """Then SentencePiece in Mistral's native format, and `tokenizer.json` in others."""
    assert _file(tmp_path) is None
    KINDS["words of Tekken"].write(tmp_path)
    shutil.copy(V1, tmp_path / "tokenizer.model")
    assert _file(tmp_path) == "tokenizer.json"
    assert load_tokenizer(tmp_path).vocab_size == 600
    shutil.copy(V3, tmp_path / "tokenizer.model.v3")
    (tmp_path / "params.json").write_text("{}")
    assert _file(tmp_path) == "tokenizer.model.v3"
    assert load_tokenizer(tmp_path).vocab_size == 32768
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert _file(tmp_path) == "tokenizer.json"
    file = mistral_tokenizer_file(tmp_path)
    assert file is not None
    assert file.name == "tokenizer.model.v3"
    write_tekken(tmp_path, "v7")
    assert _file(tmp_path) == "tekken.json"
    assert tokenizer_file(tmp_path) == mistral_tokenizer_file(tmp_path)
    assert load_tokenizer(tmp_path).vocab_size == SMALL + N_SPECIAL


def _file(directory: Path) -> str | None:
    file = tokenizer_file(directory)
    return None if file is None else file.name


def test_an_archive_has_the_one_tokenizer_that_the_model_uses(tmp_path: Path) -> None:
    """The engine needs none, so a directory without a tokenizer has an archive too."""
    (tmp_path / "config.json").write_text("{}")
    assert [path.name for path in unpack(pack(tmp_path)).iterdir()] == ["config.json"]
    KINDS["words of Tekken"].write(tmp_path)
    write_tekken(tmp_path, "v7")
    assert {path.name for path in unpack(pack(tmp_path)).iterdir()} == {"config.json", "tekken.json"}
    assert load_tokenizer(unpack(pack(tmp_path))).vocab_size == SMALL + N_SPECIAL
