"""`tokenizer.json`: byte-level BPE, and SentencePiece-style BPE with byte fallback."""

import json
import secrets
from collections.abc import Mapping
from functools import cached_property
from importlib.resources.abc import Traversable
from typing import Any

import tokenizers
from tokenizers import models

from model.checkpoint.words import LLAMA3_WORDS
from model.errors import ModelError, one_line
from model.tokenizers.config import special_token, tokenizer_config
from model.tokenizers.pieces import decode_pieces, readable

_DECODERS = ("ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace")


class HuggingFaceTokenizer:
    """A pipeline of the `tokenizers` library. Its special added tokens are the control tokens.

    Raises ModelError for other models than BPE.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, bos: str | None, eos: str | None) -> None:
        if not isinstance(tokenizer.model, models.BPE):
            raise ModelError(f"tokenizer.json has a {type(tokenizer.model).__name__} model; Noria supports BPE")
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.control: dict[str, int] = {token.content: index for index, token in added.items() if token.special}
        self._control_names = {index: name for name, index in self.control.items()}
        self._steps = _decoder_steps(tokenizer)
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.bos_id: int | None = tokenizer.token_to_id(bos) if bos else None
        self.eos_id: int | None = tokenizer.token_to_id(eos) if eos else None
        self.strips_leading_space = any(_strips(step) for step in self._steps.values())
        self._prefix: list[int] = [token for token in tokenizer.encode("").ids if token == self.bos_id]

    @classmethod
    def load(cls, directory: Traversable) -> "HuggingFaceTokenizer":
        """The tokenizer in `tokenizer.json`; `tokenizer_config.json` names the begin and end tokens."""
        try:
            tokenizer = tokenizers.Tokenizer.from_buffer((directory / "tokenizer.json").read_bytes())
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"tokenizer.json cannot be read: {one_line(error)}") from error
        config = tokenizer_config(directory)
        bos, eos = special_token(config, "bos_token"), special_token(config, "eos_token")
        return cls(tokenizer, bos=bos, eos=eos)

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        tokenizer = self._tokenizer if parse_control else self._plain
        # encode_batch_fast releases the interpreter, encode does not: it would block the service's event loop.
        ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return self._prefix + ids if add_bos else ids

    def piece(self, token: int) -> bytes:
        if token in self._control_names or token < 0 or (text := self._tokenizer.id_to_token(token)) is None:
            return b""
        if "ByteLevel" in self._steps:
            return _from_byte_level(text)
        if "ByteFallback" in self._steps and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()

    def name(self, token: int) -> str:
        return self._control_names.get(token) or readable(self.piece(token))

    def decode(self, tokens: list[int], *, keep_control: bool = False) -> str:
        return decode_pieces(self, tokens, keep_control=keep_control)

    @property
    def doubt(self) -> str | None:
        """A line about a pipeline that is known to be wrong, None for others.

        transformers converted Mistral's tekken with the words of Llama 3 until November 2025 (its `fix_mistral_regex`).
        """
        if "[INST]" not in self.control or self._tokenizer.pre_tokenizer is None:
            return None
        steps = _described("pre_tokenizer", self._tokenizer.pre_tokenizer)
        patterns = [step.get("pattern", {}).get("Regex") for step in steps.get("pretokenizers", [steps])]
        if LLAMA3_WORDS not in patterns:
            return None
        return (
            "the tokenizer divides a text into the words of Llama 3, and its model was trained with those of Mistral: "
            "put the model's tekken.json beside tokenizer.json, or get a newer conversion"
        )

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """A copy that never produces control tokens from text.

        It is not enough not to match their names in the text: merges, or a vocabulary that is looked up whole
        (`ignore_merges`), can produce them. In the copy the control tokens have random names, which no text contains.
        Removing them would renumber the added tokens that follow.
        """
        spec = json.loads(self._tokenizer.to_str())
        secret = secrets.token_hex(16)
        hidden = {name: f"\ue000{secret}-{token}" for name, token in self.control.items()}
        for token in spec["added_tokens"]:
            token["content"] = hidden.get(token["content"], token["content"])
        model = spec["model"]
        model["vocab"] = {hidden.get(text, text): token for text, token in model["vocab"].items()}
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
        model["merges"] = [
            (left, right) for left, right in model["merges"] if hidden.keys().isdisjoint((left, right, left + right))
        ]
        spec["post_processor"] = None
        return tokenizers.Tokenizer.from_str(json.dumps(spec))


def _described(part: str, value: Any) -> dict[str, Any]:
    """A part of a pipeline as it is in a file."""
    bare = tokenizers.Tokenizer(models.BPE())  # its text has no vocabulary
    setattr(bare, part, value)
    state: dict[str, Any] = json.loads(bare.to_str())[part]
    return state


def _decoder_steps(tokenizer: tokenizers.Tokenizer) -> dict[str, dict[str, Any]]:
    if tokenizer.decoder is None:
        raise ModelError("tokenizer.json has no decoder; Noria supports byte-level and byte-fallback BPE")
    state = _described("decoder", tokenizer.decoder)
    steps = {step["type"]: step for step in state.get("decoders", [state])}
    if unknown := [name for name in steps if name not in _DECODERS]:
        raise ModelError(f"tokenizer.json has decoder {unknown[0]!r}; Noria supports {', '.join(_DECODERS)}")
    return steps


def _strips(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return step.get("prepend_scheme", "always") != "never"
    return step["type"] == "Strip" and step["start"] > 0


def _from_byte_level(text: str) -> bytes:
    """Bytes of a byte-level token. A token with characters outside GPT-2's alphabet is encoded as UTF-8."""
    try:
        return bytes(map(_BYTES.__getitem__, text))
    except KeyError:
        return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's character for each byte: printable bytes are themselves, the others are U+0100 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES: Mapping[str, int] = _byte_alphabet()
