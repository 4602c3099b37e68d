"""`tokenizer.json`: byte-level BPE, and SentencePiece-style BPE with byte fallback."""

import json
import secrets
from collections.abc import Collection, Mapping
from functools import cached_property
from importlib.resources.abc import Traversable
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from model.checkpoint.words import LLAMA3_WORDS
from model.errors import ModelError, one_line, short
from model.tokenizers.base import Tokenizer
from model.tokenizers.roles import Roles, is_mark, read_roles

_DECODERS = ("ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace")


class HuggingFaceTokenizer(Tokenizer):
    """A pipeline of the `tokenizers` library. Its special added tokens are control tokens, and so are `marks`.

    `marks` are added tokens that chat templates write. Where they are not special, an answer has their text.
    Raises ModelError for other models than BPE.
    """

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, *, bos: str | None, eos: str | None, marks: Collection[str] = ()
    ) -> None:
        if not isinstance(tokenizer.model, models.BPE):
            raise ModelError(f"tokenizer.json has a {type(tokenizer.model).__name__} model; Noria supports BPE")
        self._tokenizer = tokenizer
        left = {"truncation": tokenizer.truncation, "padding": tokenizer.padding, "dropout": tokenizer.model.dropout}
        self._left_on = [name for name, setting in left.items() if setting]
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.model.dropout = None
        added = tokenizer.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self._silent = frozenset(index for index, token in added.items() if token.special)
        self.control = {name: i for i, name in self._added.items() if i in self._silent or name in marks}
        self._steps = _decoder_steps(tokenizer)
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.bos_id = tokenizer.token_to_id(bos) if bos else None
        self.eos_id = tokenizer.token_to_id(eos) if eos else None
        self.strips_leading_space = any(_strips(step) for step in self._steps.values())
        begun = tokenizer.encode("a")  # what the pipeline puts after a text would end a prompt
        self._prefix: list[int] = begun.ids[: [*begun.sequence_ids, 0].index(0)]

    @classmethod
    def load(cls, directory: Traversable, roles: Roles | None = None) -> "HuggingFaceTokenizer":
        """Load the tokenizer in `tokenizer.json`, with the roles that all files of the directory give to its tokens."""
        roles = roles or read_roles(directory)
        try:
            tokenizer = tokenizers.Tokenizer.from_buffer((directory / "tokenizer.json").read_bytes())
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"tokenizer.json cannot be read: {one_line(error)}") from error
        _add(tokenizer, roles)
        marks = roles.in_templates(token.content for token in tokenizer.get_added_tokens_decoder().values())
        return cls(tokenizer, bos=roles.named.get("bos_token"), eos=roles.named.get("eos_token"), marks=marks)

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        tokenizer = self._tokenizer if parse_control else self._plain
        # encode_batch_fast releases the interpreter, encode does not: it would block the service's event loop.
        ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return self._prefix + ids if add_bos else ids

    def piece(self, token: int) -> bytes:
        if token in self._silent or token < 0 or (text := self._tokenizer.id_to_token(token)) is None:
            return b""
        if "ByteLevel" in self._steps:
            return self._added[token].encode() if token in self._added else _from_byte_level(text)
        if "ByteFallback" in self._steps and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return lines about the file for its user: settings without effect, a pipeline that is known to be wrong."""
        left = f"tokenizer.json has {' and '.join(self._left_on)} on, as a training run left it: it is off here"
        return tuple(filter(None, (left if self._left_on else None, self.doubt)))

    @property
    def doubt(self) -> str | None:
        """Return a line about a pipeline that is known to be wrong, None for others.

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
        """Return a copy that never produces control tokens from text.

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
        model["merges"] = [pair for pair in model["merges"] if hidden.keys().isdisjoint((*pair, "".join(pair)))]
        spec["post_processor"] = None
        return tokenizers.Tokenizer.from_str(json.dumps(spec))


def _add(tokenizer: tokenizers.Tokenizer, roles: Roles) -> None:
    """Add the tokens of other files, and make those with a role special."""
    for name, added in roles.added.items():
        if tokenizer.token_to_id(name) is None:
            if added.id != (size := tokenizer.get_vocab_size()):
                raise ModelError(f"{added.file} gives {short(name)} the id {added.id}; the next one is {size}")
            tokenizer.add_tokens([AddedToken(name, normalized=False)])
    known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    for name in sorted(roles.special):
        token = known.get(name) or AddedToken(name, normalized=False)
        if not token.special and (name in known or (is_mark(name) and tokenizer.token_to_id(name) is not None)):
            token.special = True
            tokenizer.add_special_tokens([token])


def _described(part: str, value: Any) -> dict[str, Any]:
    """Describe a part of a pipeline as it is in a file."""
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
    """Return the bytes of a byte-level token. A token with characters outside GPT-2's alphabet is encoded as UTF-8."""
    try:
        return bytes(map(_BYTES.__getitem__, text))
    except KeyError:
        return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each of GPT-2's characters: printable bytes are themselves, others are U+0100 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES: Mapping[str, int] = _byte_alphabet()
