"""Small model directories whose files name tokens in every way."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

CHATML = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BEGIN, END, OPEN, CLOSE = 256, 257, 258, 259
"""Ids of `<s>`, `</s>`, `<|im_start|>` and `<|im_end|>`."""
NAMES = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")

Files = Mapping[str, Any]


def pipeline(special: Sequence[str] = NAMES, post: str | None = None) -> tokenizers.Tokenizer:
    """One token a byte, and the four marks; those that are not `special` are added tokens of another kind."""
    vocab = {char: token for token, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(name, special=name in special, normalized=False) for name in NAMES])
    if post:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=post, special_tokens=[("<s>", BEGIN), ("</s>", END)]
        )
    return tokenizer


def write(directory: Path, tokenizer: tokenizers.Tokenizer | None, files: Files) -> Path:
    """Write a tokenizer and files by their names: a text as it is, all other contents as JSON."""
    if tokenizer is not None:
        tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return directory


def ggml(types: Mapping[str, int], **values: Any) -> dict[str, Any]:
    """GGUF metadata of the same tokens. `types` are those of the four marks, and of more tokens that follow them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    kinds = {**dict.fromkeys(NAMES, 3), **types}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*alphabet, *kinds],
        "tokenizer.ggml.token_type": [1] * len(alphabet) + list(kinds.values()),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.chat_template": CHATML,
        **{f"tokenizer.ggml.{name}": value for name, value in values.items()},
    }
