"""Everything the service was started with, frozen. Flags and `NORIA_*` variables end here (see cli.py)."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from model.checkpoint.resolve import EMBEDDED
from model.errors import OptionError

MAX_STEP_TOKENS = 2**20


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the command line; None means "decide from the model or the machine"."""

    model: str = EMBEDDED
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
    quantize: str = "auto"
    attention: str = "auto"
    kv_dtype: str = "auto"
    deterministic: bool = False
    sliding_window: int | None = None
    max_model_len: int | None = None
    max_sequences: int | None = None
    max_step_tokens: int | None = None
    cache_memory: int | None = None
    gpu_memory_utilization: float | None = None
    threads: int | None = None
    step_timeout: float = 60.0
    # logs
    log_format: str = "human"
    log_level: str = "info"

    def check(self) -> None:
        """Raise OptionError for what cannot work, before anything is started."""
        if self.max_sequences and self.max_step_tokens and self.max_sequences > self.max_step_tokens:
            raise OptionError(
                f"--max-sequences {self.max_sequences} is more than --max-step-tokens {self.max_step_tokens}: "
                "each running sequence needs a token of every step; lower the one or raise the other"
            )
        if any(not key.strip() for key in self.api_keys):
            raise OptionError("--api-key must not be empty")
        for flag, values in (("--served-model-name", self.served_model_name), ("--cors-origin", self.cors_origins)):
            if any(not value.strip() for value in values):
                raise OptionError(f"{flag} must not be empty")
        if self.max_step_tokens and self.max_step_tokens > MAX_STEP_TOKENS:
            raise OptionError(f"--max-step-tokens must be at most {MAX_STEP_TOKENS}, got {self.max_step_tokens}")
        if self.chat_template is not None and not self.chat_template.is_file():
            raise OptionError(f"--chat-template {self.chat_template}: no such file")
        self._check_tls()

    def _check_tls(self) -> None:
        if self.ssl_certfile is None and self.ssl_keyfile is None:
            return
        if self.ssl_certfile is None:
            raise OptionError("--ssl-keyfile needs --ssl-certfile")
        for flag, path in (("--ssl-certfile", self.ssl_certfile), ("--ssl-keyfile", self.ssl_keyfile)):
            if path is not None and not path.is_file():
                raise OptionError(f"{flag} {path}: no such file")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except OSError as error:
            raise OptionError(f"--ssl-certfile {self.ssl_certfile} cannot be used: {error}") from error
