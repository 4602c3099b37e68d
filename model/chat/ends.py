"""The tokens that end an answer, united from a model's configurations, its tokenizer's files and its chat template."""

from importlib.resources.abc import Traversable

from model.chat.formats import ChatFormat
from model.chat.jinja import JinjaChat
from model.checkpoint.generation_config import configured_ends
from model.tokenizers.base import Tokenizer
from model.tokenizers.roles import Roles


def end_tokens(directory: Traversable, roles: Roles, tokenizer: Tokenizer, chat: ChatFormat | None) -> dict[int, str]:
    """Return the ids of tokens that end an answer -> their source: a file, the tokenizer or the chat template."""
    file, ids = configured_ends(directory)
    ends = dict.fromkeys(ids, file)
    if tokenizer.eos_id is not None:
        ends.setdefault(tokenizer.eos_id, "tokenizer")
    named = {given.text: given.file for given in roles.given if given.role == "eos_token"}
    written = {chat.written_end(): "chat template"} if isinstance(chat, JinjaChat) else {}
    for name, source in (written | named).items():
        if name in tokenizer.control:
            ends.setdefault(tokenizer.control[name], source)
    return ends
