"""Audio in Mistral's chat formats, and the prompt of a transcript. Oracle: mistral-common, which decodes real files."""

import base64
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.transcription.request import TranscriptionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from model.chat.formats import ChatFormat, load_chat
from model.chat.media import AUDIO, BEGIN_AUDIO, TRANSCRIBE, AudioTokens
from model.chat.reasoning import PARTS
from model.chat.transcription import transcribes, transcription
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from tests.model.tokenizers.tekken_files import write_tekken

Json = dict[str, Any]

V7 = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "<20>", "<21>", "<22>", "<23>"),
    *("[AUDIO]", "[BEGIN_AUDIO]", *(f"<{rank}>" for rank in range(26, 32))),
)
LATER = (*V7, "[ARGS]", "[CALL_ID]", "[TRANSCRIBE]", "[THINK]", "[/THINK]")
SPECIAL = {"v7": (*V7, "<32>", "<33>", "[TRANSCRIBE]"), "v11": LATER, "v13": LATER}
AUDIO_CONFIG = {
    "sampling_rate": 16000,
    "frame_rate": 12.5,
    "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
    "chunk_length_s": 30.0,
}
"""As in Voxtral Mini 3B's file: 12.5 tokens a second."""
PER_CHUNK = 375


class Subject(NamedTuple):
    tokenizer: Tokenizer
    chat: ChatFormat
    oracle: MistralTokenizer


@pytest.fixture(scope="module", params=SPECIAL)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    directory: Path = tmp_path_factory.mktemp(request.param)
    (directory / "params.json").write_text("{}")
    file = write_tekken(directory, request.param, special=SPECIAL[request.param], audio=AUDIO_CONFIG)
    tokenizer = load_tokenizer(directory)
    chat = load_chat(directory, tokenizer)
    assert chat is not None
    return Subject(tokenizer, chat, MistralTokenizer.from_file(file))


def wav(seconds: float) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.sin(np.arange(int(16000 * seconds)) / 9), 16000, format="wav")
    return buffer.getvalue()


def conversation(*seconds: float) -> tuple[list[Json], list[Json]]:
    """A question about recordings of these lengths, for Noria and for mistral-common."""
    texts = [{"type": "text", "text": "What is said here? [AUDIO]"}]
    theirs = [{"type": "input_audio", "input_audio": base64.b64encode(wav(each)).decode()} for each in seconds]
    answer = {"role": "assistant", "content": "Nothing."}
    ours = [{"type": "audio"} for _ in seconds]
    later = {"role": "user", "content": "Really?"}
    return (
        [{"role": "user", "content": "", PARTS: [*ours, *texts]}, answer, later],
        [{"role": "user", "content": [*theirs, *texts]}, answer, later],
    )


def expanded(tokens: list[int], tokenizer: Tokenizer, *n_chunks: int) -> list[int]:
    """The tokens with as many `[AUDIO]` as chunks have, in place of each."""
    lengths = iter(n_chunks)
    mark = tokenizer.control[AUDIO]
    return [one for token in tokens for one in [token] * (PER_CHUNK * next(lengths) if token == mark else 1)]


def test_conversations_with_recordings(subject: Subject) -> None:
    ours, theirs = conversation(3, 31)
    tokens = subject.chat.encode(ours)
    assert AudioTokens.of(subject.tokenizer) == (
        subject.tokenizer.control[AUDIO],
        subject.tokenizer.control[BEGIN_AUDIO],
    )
    expected = subject.oracle.encode_chat_completion(ChatCompletionRequest.model_validate({"messages": theirs})).tokens
    assert expanded(tokens, subject.tokenizer, 1, 2) == expected


@pytest.mark.parametrize("language", [None, "en", "nl"])
@pytest.mark.parametrize(("seconds", "n_chunks"), [(1, 1), (30, 1), (61, 3)])
def test_the_prompt_of_a_transcript(subject: Subject, language: str | None, seconds: float, n_chunks: int) -> None:
    assert transcribes(subject.chat, subject.tokenizer)
    request = TranscriptionRequest(model="any", audio=wav(seconds), language=language)  # type: ignore[arg-type]
    expected = subject.oracle.encode_transcription(request).tokens
    ours = transcription(subject.chat, subject.tokenizer, language)
    assert expanded(ours, subject.tokenizer, n_chunks) == expected
    assert ours[-1] == subject.tokenizer.control[TRANSCRIBE]


def test_only_users_speak(subject: Subject) -> None:
    assert subject.chat.media_roles["audio"] == {"user"}
    heard = {"role": "assistant", "content": "", PARTS: [{"type": "audio"}]}
    with pytest.raises(ParameterError, match=r"messages\[1\] has audio: this model's chat format cannot write audio"):
        subject.chat.encode([{"role": "user", "content": "Hello"}, heard])


def test_a_tokenizer_without_an_audio_encoder_takes_none(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    write_tekken(tmp_path, "v13", special=SPECIAL["v13"])
    tokenizer = load_tokenizer(tmp_path)
    chat = load_chat(tmp_path, tokenizer)
    assert chat is not None
    assert not transcribes(chat, tokenizer)
    with pytest.raises(ParameterError, match=r"messages\[0\] has audio: this model takes no audio"):
        chat.encode([{"role": "user", "content": "", PARTS: [{"type": "audio"}]}])
