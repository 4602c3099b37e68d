"""SentencePiece: `tokenizer.model`, and Mistral's `tokenizer.model.v2`, `.v3`, ..."""

from importlib.resources.abc import Traversable
from itertools import pairwise

from model.errors import ModelError, short
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import control_pattern, encode_with_control
from model.tokenizers.roles import NO_ROLES, Roles


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, and the tokens that other files add. The library never finds control pieces in text.

    Raises ModelError for a file that is not a SentencePiece model, and for an added token whose id is another's. A
    control piece stays one under its own name.
    """

    def __init__(self, path: Traversable, roles: Roles = NO_ROLES) -> None:
        from sentencepiece import SentencePieceProcessor

        self._model = SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise ModelError(f"{path.name} is not a readable SentencePiece model; download it again") from error
        ids = range(self._model.vocab_size())
        pieces = {token: self._model.id_to_piece(token) for token in ids}
        own = {pieces[token]: token for token in ids if self._is_control(token)}
        for name, given in roles.added.items():
            if (taken := pieces.setdefault(given.id, name)) != name and taken not in own:
                raise ModelError(f"{given.file} gives {short(name)} the id {given.id}, which {short(taken)} has")
        added = {name: given.id for name, given in roles.added.items() if pieces[given.id] == name}
        # The library finds user-defined pieces in every text. They have no score, as control pieces and bytes.
        found = {pieces[token]: token for token in ids if not self._model.get_score(token)} | added
        silent = own | {name: found[name] for name in sorted(roles.special & found.keys())}
        self.control = silent | {name: found[name] for name in sorted(roles.in_templates(found))}
        self._texts = {token: name.encode() for name, token in (added | self.control).items()}
        self._texts |= dict.fromkeys(silent.values(), b"")
        self._words = {name: token for name, token in added.items() if name not in self.control}
        self._patterns = tuple(map(control_pattern, (self._words, self._words | self.control)))
        self._marks = control_pattern(name for name in self.control if len(name) > 1)
        self._spellable = frozenset(self.control.values()).difference(own.values())
        self.vocab_size = max([len(ids), *(token + 1 for token in added.values())])
        self.bos_id = self._id_of(roles.named.get("bos_token"), self._model.bos_id())
        self.eos_id = self._id_of(roles.named.get("eos_token"), self._model.eos_id())
        # Reading this from the proto would need protobuf. The encoding of a word has the same information.
        self.strips_leading_space: bool = self._model.encode("a", out_type=str)[0].startswith("▁")

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        ids = [self.bos_id] if add_bos and self.bos_id is not None else []
        known = self._words | self.control if parse_control else self._words
        return ids + list(encode_with_control(text, known, self._patterns[parse_control], self._spelled))

    def piece(self, token: int) -> bytes:
        if token in self._texts or not 0 <= token < self._model.vocab_size():
            return self._texts.get(token, b"")
        if self._model.is_byte(token):
            return bytes([int(self._model.id_to_piece(token)[3:5], 16)])
        return self._model.id_to_piece(token).replace("▁", " ").encode()

    def _spelled(self, text: str, before: str = "") -> list[int]:
        """Encode a text after `before`. The library finds user-defined pieces: a text is cut within control tokens."""
        ids: list[int] = self._model.encode(before + text)[len(self._model.encode(before)) :]
        if len(text) < 2 or self._spellable.isdisjoint(ids):
            return ids
        cuts = [match.start() + 1 for match in self._marks.finditer(text)] or [len(text) // 2]
        inner = "\n" * self.strips_leading_space  # the library adds a space before a first word
        parts = pairwise((0, *cuts, len(text)))
        return [token for a, b in parts for token in self._spelled(text[a:b], inner if a else before)]

    def _id_of(self, name: str | None, default: int) -> int | None:
        token = self.control.get(name or "", default)
        return token if token >= 0 else None

    def _is_control(self, token: int) -> bool:
        return self._model.is_control(token) or self._model.is_unknown(token) or self._model.is_unused(token)
