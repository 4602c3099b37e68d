"""The prompt that makes a model write down what it hears."""

from model.chat.formats import ChatFormat
from model.chat.media import TRANSCRIBE
from model.chat.reasoning import PARTS
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import encode_inner


def transcribes(chat: ChatFormat, tokenizer: Tokenizer) -> bool:
    return "audio" in chat.media_roles and TRANSCRIBE in tokenizer.control


def transcription(chat: ChatFormat, tokenizer: Tokenizer, language: str | None) -> list[int]:
    """Return the ids of Voxtral's prompt for a transcript, with one `[AUDIO]` for the recording.

    `language` is a code of ISO 639-1. Without it, the model finds out what is spoken. Worked example, for "en":
    `<s>[INST][BEGIN_AUDIO][AUDIO][/INST]lang:en[TRANSCRIBE]`.
    """
    ids = chat.encode([{"role": "user", "content": "", PARTS: [{"type": "audio"}]}])
    named = encode_inner(tokenizer, f"lang:{language}") if language else []
    return [*ids, *named, tokenizer.control[TRANSCRIBE]]
