"""A `tokenizer.json` from the tokens, merges and scores in GGUF metadata.

Two kinds cover the family: "gpt2" (byte-level BPE; its pre-tokenizer is named) and "llama" (SentencePiece BPE with
byte fallback; its merges follow from the pieces' scores).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model.checkpoint.gguf.config import CONTROL, UNKNOWN, UNUSED, USER_DEFINED, end_tokens
from model.checkpoint.words import LLAMA3_WORDS, TEKKEN_WORDS
from model.errors import ModelError, short

_TEMPLATE = re.compile(r"tokenizer\.chat_template(?:\.(.+))?")
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}

Metadata = Mapping[str, Any]


def tokenizer_files(metadata: Metadata) -> dict[str, str]:
    """Make `tokenizer.json` and `tokenizer_config.json`, as text. Raises ModelError for another kind of tokenizer."""
    kind = metadata.get("tokenizer.ggml.model", "")
    if kind not in _BUILDERS:
        raise ModelError(f"the GGUF file has a {short(kind)} tokenizer; Noria supports {', '.join(_BUILDERS)}")
    _check(metadata)
    tokenizer = _BUILDERS[kind](metadata)
    for token_type, special in ((UNKNOWN, True), (CONTROL, True), (UNUSED, True), (USER_DEFINED, False)):
        names = _tokens_of_type(metadata, token_type)
        tokenizer.add_tokens([AddedToken(name, special=special, normalized=False) for name in names])
    config = tokenizer_config(metadata)
    if config["add_bos_token"]:
        bos = config["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", "$B"],
            special_tokens=[(bos, metadata["tokenizer.ggml.bos_token_id"])],
        )
    return {"tokenizer.json": tokenizer.to_str(), "tokenizer_config.json": json.dumps(config)}


def tokenizer_config(metadata: Metadata) -> dict[str, Any]:
    """Make the special tokens by role and the chat template, under the names of transformers."""
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for role, key in _ROLES.items():
        if (token := metadata.get(f"tokenizer.ggml.{key}_token_id")) in range(len(tokens)):
            config[f"{role}_token"] = tokens[token]
    config["additional_special_tokens"] = [tokens[token] for token in end_tokens(metadata)]
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", _adds_bos(metadata))
    config["add_bos_token"] = bool(adds_bos) and "bos_token" in config
    found = ((match[1] or "default", metadata[match[0]]) for match in map(_TEMPLATE.fullmatch, metadata) if match)
    if templates := [{"name": name, "template": text} for name, text in found if text]:
        config["chat_template"] = templates
    return config


def wrong_padding(name: str, metadata: Metadata) -> tuple[str, ...]:
    """Return a line for a padding token that is not in the vocabulary. No text that is served has one."""
    pad, n_tokens = metadata.get("tokenizer.ggml.padding_token_id"), len(metadata.get("tokenizer.ggml.tokens", ()))
    if pad is None or pad in range(n_tokens):
        return ()
    return (f"{name} has tokenizer.ggml.padding_token_id {short(pad)}, beyond its {n_tokens} tokens: it is ignored",)


def _check(metadata: Metadata) -> None:
    """Raise ModelError for a table of another length than the vocabulary, and for a token that is not in it."""
    n_tokens = len(metadata["tokenizer.ggml.tokens"])
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        if (n_values := len(metadata.get(key, ())) or n_tokens) != n_tokens:
            raise ModelError(f"the GGUF file has {n_values} values in {key}, expected {n_tokens}, one for each token")
    for key in (f"tokenizer.ggml.{role}_token_id" for role in ("bos", "eos", "unknown")):
        if (token := metadata.get(key, 0)) not in range(-1 if "eos" in key else 0, n_tokens):  # -1: none
            raise ModelError(f"the GGUF file has {short(token)} in {key}, expected 0..{n_tokens - 1}")


def _adds_bos(metadata: Metadata) -> bool:
    """Return whether texts begin with the begin token, where the file does not say it: as in llama.cpp."""
    pre = _PRE_TOKENIZERS.get(metadata.get("tokenizer.ggml.pre", ""))
    return metadata["tokenizer.ggml.model"] == "llama" or (pre is not None and pre.whole_words)


def _tokens_of_type(metadata: Metadata, token_type: int) -> list[str]:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type", ())
    return [tokens[index] for index, kind in enumerate(types) if kind == token_type]


def _byte_level(metadata: Metadata) -> Tokenizer:
    name = str(metadata.get("tokenizer.ggml.pre", ""))
    if name not in _PRE_TOKENIZERS:
        found = f"pre-tokenizer {short(name)}" if name else "no pre-tokenizer (tokenizer.ggml.pre)"
        raise ModelError(f"the GGUF file has {found}; Noria supports {', '.join(_PRE_TOKENIZERS)}")
    pre = _PRE_TOKENIZERS[name]
    vocab = _vocab(metadata)
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in metadata["tokenizer.ggml.merges"])]
    for left, right in merges:
        if left not in vocab or right not in vocab or left + right not in vocab:
            wrong = short(f"{left} {right}")
            raise ModelError(f"the GGUF file has a merge {wrong}, which does not join two of its tokens to a third")
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre.whole_words))
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _vocab(metadata: Metadata) -> dict[str, int]:
    return {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _sentencepiece(metadata: Metadata) -> Tokenizer:
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    unknown = metadata["tokenizer.ggml.tokens"][metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    vocab = _vocab(metadata)
    no_text = {name for kind in (CONTROL, UNUSED) for name in _tokens_of_type(metadata, kind)}
    merges = score_merges(vocab, metadata["tokenizer.ggml.scores"], no_text)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace] if prefix else [replace])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def score_merges(vocab: Mapping[str, int], scores: Sequence[float], control: set[str]) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece BPE model: every split of a piece into two pieces, highest score first.

    Mistral and Llama give all runs of spaces one score. SentencePiece then joins the leftmost pair. A list of merges
    has no positions: pieces of one score are ranked by id, and the splits of a piece by the length of the left part.
    This gives SentencePiece's ids for the vocabularies of Mistral and Llama 2. Control pieces have no merges.
    """
    merges = []
    for piece, index in vocab.items():
        if piece in control:
            continue
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [pair for pair in splits if pair[0] in vocab and pair[1] in vocab and control.isdisjoint(pair)]
        merges += [(-scores[index], index, -len(left), (left, right)) for left, right in known]
    return [pair for *_, pair in sorted(merges)]


@dataclass(frozen=True, slots=True)
class _Words:
    """How a text is divided before merges. With `whole_words`, a word that is a token is not divided further."""

    build: Callable[[], pre_tokenizers.PreTokenizer]
    whole_words: bool = False


_LLAMA3 = _Words(lambda: _split_by(LLAMA3_WORDS), whole_words=True)
_PRE_TOKENIZERS: Mapping[str, _Words] = {
    "smollm": _Words(_smollm),
    "llama-bpe": _LLAMA3,
    "gpt-2": _Words(_gpt2),
    "tekken": _Words(lambda: _split_by(TEKKEN_WORDS), whole_words=True),
    **dict.fromkeys(("llama3", "llama-v3", "pixtral"), _LLAMA3),
}
"""By llama.cpp's names. Those of whole words begin texts with the begin token too, unless the file says otherwise."""
_BUILDERS: Mapping[str, Callable[[Metadata], Tokenizer]] = {"gpt2": _byte_level, "llama": _sentencepiece}
