"""The tokens that end an answer, whichever file names them. Rules: vLLM's union, llama.cpp's list of texts."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GenerationConfig

from model.chat.ends import end_tokens
from model.chat.formats import load_chat
from model.checkpoint.gguf.config import generation_config
from model.errors import ModelError
from model.grammar.archive import pack, unpack
from model.tokenizers.load import load_tokenizer
from model.tokenizers.roles import read_roles
from service.generation.startup import load_text_side
from tests.gguf_models import write_tokenizer
from tests.model.tokenizers.role_files import BEGIN, CHATML, CLOSE, END, OPEN, Files, ggml, pipeline, write
from tests.model.tokenizers.vocabularies import V1

PLAIN = "{{ bos_token }}{% for message in messages %}{{ message.content }}\n{% endfor %}"
NAMED_END = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}{% else %}{{ m.content + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
PARTS = (
    "{% for m in messages %}<|im_start|>{% for part in m.content %}{{ part.text }}{% endfor %} <|im_end|>{% endfor %}"
)
FALLING_SHORT = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
CALM = "{{ raise_exception('no') if tools is defined }}" + CHATML
GENERATION: Files = {"generation_config.json": {"eos_token_id": END}}
CONFIG: Files = {"config.json": {"model_type": "mistral", "eos_token_id": [END]}}


def named(**roles: str) -> Files:
    return {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **roles}}


CASES: dict[str, tuple[Files, list[int]]] = {
    "nobody": ({}, []),
    "generation config alone": (GENERATION, [END]),
    "the generation config takes the place of the config": ({**CONFIG, **GENERATION}, [END]),
    "the tokenizer, too": ({**GENERATION, **named(eos_token="<|im_end|>")}, [END, CLOSE]),
    "the tokenizer beside the config": ({**CONFIG, **named(eos_token="<|im_end|>")}, [END, CLOSE]),
    "special tokens, too": ({**GENERATION, "special_tokens_map.json": {"eos_token": "<|im_end|>"}}, [END, CLOSE]),
    "each of two files": (
        {**named(eos_token="</s>"), "special_tokens_map.json": {"eos_token": {"content": "<|im_end|>"}}},
        [CLOSE, END],
    ),
    "the template": ({**GENERATION, "chat_template.jinja": CHATML}, [END, CLOSE]),
    "a template of old": ({**GENERATION, **named(chat_template=CHATML)}, [END, CLOSE]),
    "a template that names the role": ({**named(eos_token="</s>"), "chat_template.jinja": NAMED_END}, [END]),
    "a template of parts": ({**GENERATION, "chat_template.jinja": PARTS}, [END, CLOSE]),
    "a template that fails without tools": ({**GENERATION, "chat_template.jinja": CALM}, [END, CLOSE]),
    "a template without an end": ({**GENERATION, "chat_template.jinja": PLAIN}, [END]),
    "a template whose next turn ends it": ({**GENERATION, "chat_template.jinja": FALLING_SHORT}, [END]),
}


def packed_ends(archive: bytes) -> tuple[dict[int, str], dict[str, int]]:
    """The end tokens and the control tokens of an archive's files."""
    packed = unpack(archive)
    roles = read_roles(packed)
    tokenizer = load_tokenizer(packed, roles)
    chat = load_chat(packed, tokenizer, roles=roles)
    return end_tokens(packed, roles, tokenizer, chat), tokenizer.control


def test_the_cases_are_those_that_they_say() -> None:
    assert (BEGIN, END, OPEN, CLOSE) == (256, 257, 258, 259)


@pytest.mark.parametrize(("files", "ends"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("special", [("<s>", "</s>", "<|im_start|>", "<|im_end|>"), ("<s>", "</s>")])
def test_ends_are_united(files: Files, ends: list[int], special: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, pipeline(special), {"config.json": {"model_type": "mistral"}, **files})
    assert list(load_text_side(tmp_path, None).defaults.eos_token_ids) == ends
    assert [*packed_ends(pack(tmp_path))[0]] == ends, "as in the process of grammars"
    theirs = {AutoTokenizer.from_pretrained(tmp_path).eos_token_id}
    if "generation_config.json" in files:
        theirs.add(GenerationConfig.from_pretrained(tmp_path).eos_token_id)
    assert theirs - {None} <= set(ends), "vLLM ends an answer at these"


def test_a_template_of_the_user_ends_answers_too(tmp_path: Path) -> None:
    """In both processes."""
    write(tmp_path, pipeline(("<s>", "</s>")), {**GENERATION, "config.json": {}, "chat_template.jinja": PLAIN})
    template = tmp_path / "other.jinja"
    template.write_text(CHATML)
    side = load_text_side(tmp_path, template)
    assert side.defaults.eos_token_ids == (END, CLOSE)
    assert side.tokenizer.control["<|im_start|>"] == OPEN
    ends, control = packed_ends(pack(tmp_path, template.read_text()))
    assert ([*ends], control) == ([END, CLOSE], side.tokenizer.control)


def test_the_words_of_every_template_are_known_in_both_processes(tmp_path: Path) -> None:
    write(tmp_path, pipeline(("<s>", "</s>")), {**GENERATION, "config.json": {}, "chat_template.jinja": PLAIN})
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(CHATML)
    ends, control = packed_ends(pack(tmp_path))
    side = load_text_side(tmp_path, None)
    assert [*ends] == [*side.defaults.eos_token_ids] == [END]
    assert control == side.tokenizer.control
    assert control["<|im_start|>"] == OPEN


def test_ends_beside_a_sentencepiece_model(tmp_path: Path) -> None:
    shutil.copy(V1, tmp_path / "tokenizer.model")
    marks = {"<|im_start|>": 32000, "<|im_end|>": 32001}
    write(tmp_path, None, {"config.json": {}, "added_tokens.json": marks, "chat_template.jinja": CHATML})
    assert load_text_side(tmp_path, None).defaults.eos_token_ids == (2, 32001)


def test_an_end_that_is_no_id_is_refused(tmp_path: Path) -> None:
    write(tmp_path, pipeline(), {"generation_config.json": {"eos_token_id": [["a"]]}})
    with pytest.raises(ModelError, match=r"generation_config\.json has \[\['a'\]\] in eos_token_id"):
        load_text_side(tmp_path, None)


# GGUF


@pytest.mark.parametrize(
    ("types", "values", "ends"),
    [
        ({}, {}, [END, CLOSE]),
        ({"<|im_end|>": 1}, {}, [END, CLOSE]),
        ({"<|endoftext|>": 3}, {"eos_token_id": 260}, [260, END, CLOSE]),
        ({"<|eot_id|>": 3, "<|eom_id|>": 3}, {"eot_token_id": 260}, [END, 260, CLOSE, 261]),
        ({"<x>": 3}, {"eos_token_ids": [260, END]}, [END, 260, CLOSE]),
        ({"<x>": 3, "</s>": 1}, {"eos_token_id": 260, "eos_token_ids": []}, [260, CLOSE]),
        ({}, {"eos_token_id": -1, "eos_token_ids": [9999]}, [END, CLOSE]),
    ],
)
def test_ends_of_a_gguf_file(types: dict, values: dict, ends: list[int], tmp_path: Path) -> None:
    metadata = ggml(types, **values)
    metadata["tokenizer.chat_template"] = PLAIN
    assert generation_config(metadata) == {"eos_token_id": ends}
    write_tokenizer(metadata, tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(generation_config(metadata)))
    assert list(load_text_side(tmp_path, None).defaults.eos_token_ids) == ends


def test_the_template_of_a_gguf_file_ends_answers(tmp_path: Path) -> None:
    """With a mark that no list has."""
    metadata = ggml({"<finis>": 4})
    metadata["tokenizer.chat_template"] = "{% for m in messages %}{{ m.content }}<finis>{% endfor %}"
    write_tokenizer(metadata, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert load_text_side(tmp_path, None).defaults.eos_token_ids == (END, CLOSE + 1)
