"""The parent's side of the process that decodes audio (`model/audio/process.py`). Does not need soundfile."""

from dataclasses import asdict

from model.audio.sizes import Mel, MelFormat
from model.errors import AudioError
from model.machine.decoding import DecodingProcess
from model.machine.helper import ONE_ARENA

ENVIRONMENT = {**ONE_ARENA, "OPENBLAS_NUM_THREADS": "1"}
"""The engine needs the other cores."""


class AudioProcess(DecodingProcess):
    """A ready process. `max_seconds` is the limit for a file of any model."""

    def __init__(self, max_seconds: int, *, patient: bool = False) -> None:
        """Start it and wait until it is ready. Raises CannotStart."""
        module, does = "model.audio.process", "decodes audio"
        super().__init__(module, does, AudioError, max_seconds, patient=patient, environment=ENVIRONMENT)

    def decode(self, data: bytes, format: MelFormat) -> Mel:
        """Decode an audio file to its spectrum. Raises AudioError, and ProcessLost."""
        answer, spectrum = self.decoded(data, asdict(format))
        return Mel(answer["n_chunks"], answer["seconds"], spectrum)
