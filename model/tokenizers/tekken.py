"""Tekken: Mistral's `tekken.json`, byte-level BPE by tiktoken as in mistral-common."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from model.checkpoint.files import read_json
from model.errors import ModelError, ParameterError, one_line, short
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import control_pattern, encode_with_control

if TYPE_CHECKING:
    from tiktoken import Encoding

OLD_SPECIAL_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""The special tokens, by rank, of the first files (v3 and v7), which do not list theirs."""


class TekkenTokenizer(Tokenizer):
    """The tokenizer in `tekken.json`. Its special tokens are the control tokens; their ranks are read from the file.

    The ids of special tokens come first; the id of another token is its rank after them. tiktoken never finds special
    tokens in text. Raises ModelError for a file that is damaged. `encode` raises ParameterError for a text with a
    million characters of white space: tiktoken's search for words fails there.
    """

    strips_leading_space = False

    def __init__(self, path: Traversable) -> None:
        content = read_json(path)
        try:
            config = content["config"]
            self._n_special = int(config["default_num_special_tokens"])
            self.vocab_size = int(config["default_vocab_size"])
            self._pieces = _pieces(content["vocab"], self.vocab_size - self._n_special)
            self.control = _control(content.get("special_tokens"), self._n_special)
            self._encoding = _encoding(str(config["pattern"]), self._pieces)
        except ImportError as error:
            raise ModelError(f"{path.name} needs the package tiktoken; install mistral-common") from error
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            problem = f"it has no {error}" if isinstance(error, KeyError) else one_line(error)
            raise ModelError(f"{path.name} is not a Tekken tokenizer: {problem}; download it again") from error
        self.bos_id = self.control.get("<s>")
        self.eos_id = self.control.get("</s>")
        self._control_pattern = control_pattern(self.control)

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        ids = [self.bos_id] if add_bos and self.bos_id is not None else []
        if not parse_control:
            return ids + self._encode(text)
        return ids + list(encode_with_control(text, self.control, self._control_pattern, self._encode))

    def piece(self, token: int) -> bytes:
        return self._pieces[token - self._n_special] if self._n_special <= token < self.vocab_size else b""

    def _encode(self, text: str) -> list[int]:
        try:
            return [self._n_special + rank for rank in self._encoding.encode(text, disallowed_special=())]
        except ValueError as error:  # the pattern of words needs too much memory for this text
            message = f"the model's tokenizer cannot divide this text into words: {one_line(error)}"
            raise ParameterError("prompt", message) from error


def _encoding(pattern: str, pieces: Sequence[bytes]) -> "Encoding":
    """Return the merges of pieces in words that a pattern finds."""
    from tiktoken import Encoding

    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    return Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def _pieces(vocab: Iterable[Mapping[str, Any]], size: int) -> tuple[bytes, ...]:
    """Return the bytes of the first `size` tokens, by rank. The file may have more than the model uses."""
    pieces = []
    for rank, entry in zip(range(size), vocab, strict=False):
        if entry["rank"] != rank:
            raise ValueError(f"vocab[{rank}] has rank {short(entry['rank'])}, expected {rank}")
        pieces.append(base64.b64decode(entry["token_bytes"]))
    if len(pieces) < size or size < 256:
        raise ValueError(f"it has {len(pieces)} tokens, its default_vocab_size needs {size}, at least 256")
    if pieces[:256] != [bytes([byte]) for byte in range(256)]:
        raise ValueError("its first 256 tokens are not the 256 bytes")
    if len(set(pieces)) != size:
        raise ValueError("two of its tokens have the same bytes")
    return tuple(pieces)


def _control(special: Iterable[Mapping[str, Any]] | None, size: int) -> dict[str, int]:
    """Return the ids of `size` special tokens by name. A rank without a name is called as in mistral-common."""
    listed = enumerate(OLD_SPECIAL_TOKENS) if special is None else ((e["rank"], e["token_str"]) for e in special)
    names: dict[int, str] = {}
    for rank, name in listed:
        if not isinstance(rank, int) or not 0 <= rank < size or rank in names or not isinstance(name, str) or not name:
            raise ValueError(
                f"special token {short(name)} has rank {short(rank)}; each needs a name and a rank of its own "
                f"below default_num_special_tokens, {size}"
            )
        names[rank] = name
    control = {names.get(rank, f"<SPECIAL_{rank}>"): rank for rank in range(size)}
    if len(control) != size:
        raise ValueError("two of its special tokens have the same name")
    return control
