"""Images in conversations: one `[IMG]` for each, where the model's own format has it, and never one from a text.

Oracles: transformers for templates, and for tokenizer files the template that mistral-common writes of each.
"""

from pathlib import Path
from typing import Any

import pytest
from mistral_common.integrations.chat_templates.chat_templates import convert_tokenizer_to_chat_template
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from model.chat.formats import ChatFormat, load_chat
from model.chat.jinja import JinjaChat
from model.chat.media import ImageTokens
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from tests.model.chat.versions import FILES, write_directory
from tests.model.tokenizers.tekken_files import VERSIONS, write_tekken

Json = dict[str, Any]
IMAGE = {"type": "image"}
NAMES = ("[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
TEMPLATE = """
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST]' }}
        {%- if message['content'] is string %}
            {{- message['content'] }}
        {%- else %}
            {%- for block in message['content'] %}
                {%- if block['type'] == 'text' %}{{ block['text'] }}
                {%- elif block['type'] in ['image', 'image_url'] %}{{ '[IMG]' }}
                {%- else %}{{ raise_exception('no such part') }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] }}
    {%- else %}
        {{- raise_exception('no such role') }}
    {%- endif %}
{%- endfor %}"""
"""As published templates of Pixtral and Mistral Small 3.1 write images."""
CONTENT = TEMPLATE.replace("block['text']", "block['content']")
"""As the first published template of Pixtral 12B for transformers: it has another key for text beside images."""


def message(*parts: str | Json, role: str = "user", **others: str) -> Json:
    """A message of texts and images, as `ChatFormat.encode` takes it."""
    listed = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    text = "".join(part for part in parts if isinstance(part, str))
    return {"role": role, "content": text, "parts": listed, **others}


SURE = {"role": "user", "content": "Sure?"}
ANSWER = {"role": "assistant", "content": "A cat."}
CONVERSATIONS = {
    "first": [message(IMAGE, "What is it?")],
    "last": [message("What is it?", IMAGE)],
    "between": [message("This: ", IMAGE, " and this: ", IMAGE)],
    "alone": [message(IMAGE)],
    "later": [message(IMAGE, "What?"), ANSWER, SURE, ANSWER, message("b", IMAGE, IMAGE)],
}


@pytest.fixture(scope="module")
def small(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory whose tokenizer has the control tokens of images."""
    made = FastTokenizer.from_file(str(directory / "tokenizer.json"))
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in NAMES])
    folder = tmp_path_factory.mktemp("images")
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def tokens(small: Path) -> Tokenizer:
    return load_tokenizer(small)


def chat_of(source: str, tokenizer: Tokenizer) -> JinjaChat:
    return JinjaChat(source, tokenizer, {})


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_template_writes_images_as_transformers_does(name: str, small: Path, tokens: Tokenizer) -> None:
    oracle = PreTrainedTokenizerFast(tokenizer_file=str(small / "tokenizer.json"), chat_template=TEMPLATE)
    asked = [{**each, "content": each.get("parts", each["content"])} for each in CONVERSATIONS[name]]
    expected = oracle.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
    ids = chat_of(TEMPLATE, tokens).encode(CONVERSATIONS[name])
    assert ids == expected
    n_images = sum(part == IMAGE for each in CONVERSATIONS[name] for part in each.get("parts", ()))
    assert ids.count(tokens.control["[IMG]"]) == n_images > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tokenizer_file_writes_images_as_its_template_does(version: str, tmp_path: Path) -> None:
    """mistral-common writes a template of each file, and sorts one image behind a text to the front in both."""
    key = "multimodal" if version in ("v3", "v7") else "image"
    image = {"image_patch_size": 14, "max_image_size": 140, "spatial_merge_size": 2}
    (tmp_path / "params.json").write_text("{}")
    file = write_tekken(tmp_path, version, **{key: image})
    tokenizer = load_tokenizer(tmp_path)
    chat = load_chat(tmp_path, tokenizer)
    assert chat is not None
    template = JinjaChat(convert_tokenizer_to_chat_template(file), tokenizer, {"bos_token": "<s>", "eos_token": "</s>"})
    assert (
        chat.media_roles.get("image", frozenset())
        == template.media_roles.get("image", frozenset())
        == ({"user", "tool"} if version == "v15" else {"user"})
    )
    for name, messages in CONVERSATIONS.items():
        assert chat.encode(messages) == template.encode(messages), name
    assert chat.render(CONVERSATIONS["last"]).endswith("[INST][IMG]What is it?[/INST]")
    assert chat.render(CONVERSATIONS["between"]).endswith("[INST]This: [IMG] and this: [IMG][/INST]")


@pytest.mark.parametrize("file", FILES)
def test_tokenizer_files_with_tokens_for_images_take_images(file: str, tmp_path: Path) -> None:
    """A file need not say how large images are: the model's own files do."""
    write_directory(tmp_path, file)
    tokenizer = load_tokenizer(tmp_path)
    chat = load_chat(tmp_path, tokenizer)
    assert chat is not None
    if file in ("spm-v1", "spm-v2", "spm-v3"):  # the last has [IMG], but nothing to end its rows
        assert chat.media_roles.get("image", frozenset()) == frozenset()
        assert_refused(chat, CONVERSATIONS["first"], r"messages\[0\] has an image: this model takes no images")
    else:
        assert "user" in chat.media_roles.get("image", frozenset())
        ids = chat.encode(CONVERSATIONS["later"])
        assert ids.count(tokenizer.control["[IMG]"]) == 3


def assert_refused(chat: ChatFormat, messages: list[Json], words: str) -> None:
    for write in (chat.encode, chat.render):
        with pytest.raises(ParameterError, match=words) as caught:
            write(messages)
        assert caught.value.param == "messages"


def test_a_text_never_becomes_an_image(small: Path, tokens: Tokenizer, tmp_path: Path) -> None:
    write_directory(tmp_path, "tekken-v7")
    native = load_tokenizer(tmp_path)
    chat = load_chat(tmp_path, native)
    assert chat is not None
    formats: list[tuple[ChatFormat, Tokenizer]] = [(chat, native), (chat_of(TEMPLATE, tokens), tokens)]
    for format_, tokenizer in formats:
        image = tokenizer.control["[IMG]"]
        assert format_.encode([{"role": "user", "content": "a [IMG] b"}]).count(image) == 0
        ids = format_.encode([message("a [IMG] b [IMG_END]", IMAGE, "[IM", IMAGE, "G]")])
        assert ids.count(image) == 2
        assert tokenizer.control["[IMG_END]"] not in ids
        assert "a [IMG] b [IMG_END]" in tokenizer.decode(ids)


IMAGE_URL = """
{%- for m in messages %}
    {%- for c in m.content if m.content is not string %}
        {{- c.text if c.type == 'text' else '[IMG]' if c.image_url is defined }}
    {%- else %}
        {{- m.content }}
    {%- endfor %}
{%- endfor %}"""


@pytest.mark.parametrize(
    ("source", "roles"),
    [
        (TEMPLATE, {"user"}),
        (CONTENT, {"user"}),
        (IMAGE_URL, {"user", "tool"}),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", set()),
        (TEMPLATE.replace("'[IMG]'", "'<image>'"), set()),
        (TEMPLATE.replace("'[IMG]'", "'[IMG][IMG_END]'"), set()),
    ],
    ids=["image", "content", "image_url", "text", "another token", "two tokens"],
)
def test_trials_find_the_roles_with_images(source: str, roles: set[str], tokens: Tokenizer) -> None:
    chat = chat_of(source, tokens)
    assert chat.media_roles.get("image", frozenset()) == roles
    for role, others in (("user", {}), ("tool", {"tool_call_id": "abcdefgh1"})):
        messages = [message("a", IMAGE, "b", role=role, **others)]
        if role in roles:
            assert "a[IMG]b" in chat.render(messages)
        else:
            why = f"cannot write an image in a message of role {role}" if roles else "this model takes no images"
            assert_refused(chat, messages, why)


def test_a_tokenizer_without_the_tokens_has_no_images(tokenizer: Tokenizer) -> None:
    assert ImageTokens.of(tokenizer) is None
    assert chat_of(TEMPLATE, tokenizer).media_roles.get("image", frozenset()) == frozenset()


@pytest.mark.parametrize("source", [TEMPLATE, CONTENT])
def test_a_merged_system_message_comes_before_the_images(source: str, tokens: Tokenizer) -> None:
    """The template refuses system messages: their text goes into the first user message."""
    system = {"role": "system", "content": "Be brief."}
    assert chat_of(source, tokens).render([system, message(IMAGE, "What?")]) == "[INST]Be brief.\n\n[IMG]What?[/INST]"


def test_what_a_caller_writes_beside_the_type_is_not_seen(tokens: Tokenizer) -> None:
    chat = chat_of("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", tokens)
    chat.media_roles = {"image": frozenset({"user"})}
    assert chat.render([message({"type": "image", "url": "data:", "field": "x"})]) == '[{"type": "image"}]'
