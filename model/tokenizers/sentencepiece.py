"""SentencePiece: `tokenizer.model`, and Mistral's `tokenizer.model.v2`, `.v3`, ..."""

from importlib.resources.abc import Traversable

from model.errors import ModelError
from model.tokenizers.pieces import control_pattern, decode_pieces, encode_with_control, readable


class SentencePieceTokenizer:
    """A SentencePiece model. The library never finds control pieces in text.

    Raises ModelError for a file that is not a SentencePiece model.
    """

    def __init__(self, path: Traversable) -> None:
        from sentencepiece import SentencePieceProcessor

        self._model = SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise ModelError(f"{path.name} is not a readable SentencePiece model; download it again") from error
        self.vocab_size: int = self._model.vocab_size()
        self.bos_id: int | None = _id_or_none(self._model.bos_id())
        self.eos_id: int | None = _id_or_none(self._model.eos_id())
        self.control: dict[str, int] = {
            self._model.id_to_piece(token): token for token in range(self.vocab_size) if self._is_control(token)
        }
        self._pattern = control_pattern(self.control)
        # Reading this from the proto would need protobuf. The encoding of a word has the same information.
        self.strips_leading_space: bool = self._model.encode("a", out_type=str)[0].startswith("▁")

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        ids = [self.bos_id] if add_bos and self.bos_id is not None else []
        if not parse_control:
            return ids + self._model.encode(text)
        return ids + list(encode_with_control(text, self.control, self._pattern, self._model.encode))

    def piece(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size or self._is_control(token):
            return b""
        if self._model.is_byte(token):
            return bytes([int(self._model.id_to_piece(token)[3:5], 16)])
        return self._model.id_to_piece(token).replace("▁", " ").encode()

    def name(self, token: int) -> str:
        if not 0 <= token < self.vocab_size:
            return ""
        if self._is_control(token):
            return self._model.id_to_piece(token)
        return readable(self.piece(token))

    def decode(self, tokens: list[int], *, keep_control: bool = False) -> str:
        return decode_pieces(self, tokens, keep_control=keep_control)

    def _is_control(self, token: int) -> bool:
        return self._model.is_control(token) or self._model.is_unknown(token) or self._model.is_unused(token)


def _id_or_none(token: int) -> int | None:
    return token if token >= 0 else None
