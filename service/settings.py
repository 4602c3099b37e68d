"""Everything the service was started with, frozen. Flags and `NORIA_*` variables end here (see cli.py)."""

from dataclasses import dataclass
from pathlib import Path

EMBEDDED_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the command line; None means "decide from the model or the machine"."""

    model: str = EMBEDDED_MODEL
    served_model_name: tuple[str, ...] = ()
    chat_template: Path | None = None
    cache_dir: Path | None = None
    revision: str | None = None
    # network
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    max_body_bytes: int = 8 * 2**20
    max_queue: int = 256
    drain_timeout: float = 30.0
    # engine
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "none"
    attention: str = "auto"
    sliding_window: int | None = None
    max_model_len: int | None = None
    max_sequences: int | None = None
    max_step_tokens: int = 512
    cache_memory: int | None = None
    step_timeout: float = 60.0
    # logs
    log_format: str = "human"
    log_level: str = "info"
