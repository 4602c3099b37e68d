"""Tokenizers of the tests."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from gguf import TokenType
from sentencepiece import SentencePieceProcessor

DATA = Path(str(files("mistral_common") / "data"))
V1 = DATA / "tokenizer.model.v1"
V3 = DATA / "mistral_instruct_tokenizer_240323.model.v3"


def gguf_metadata(file: Path) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece model, as llama.cpp's converter writes it."""
    spm = SentencePieceProcessor(model_file=str(file))
    kinds = ((spm.is_unknown, TokenType.UNKNOWN), (spm.is_control, TokenType.CONTROL), (spm.is_byte, TokenType.BYTE))
    ids = range(spm.vocab_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [spm.id_to_piece(token) for token in ids],
        "tokenizer.ggml.scores": [spm.get_score(token) for token in ids],
        "tokenizer.ggml.token_type": [
            int(next((kind for test, kind in kinds if test(token)), TokenType.NORMAL)) for token in ids
        ],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
