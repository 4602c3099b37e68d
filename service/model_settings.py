"""All options of one model that is served, frozen. A server has one of these for each of its models.

Imports here are light: `serve` needs them before it starts the engine.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from model.chat.reasoning import STYLES
from model.checkpoint.embedded import EMBEDDED_REPETITION
from model.checkpoint.resolve import EMBEDDED, default_name
from model.errors import OptionError, ParameterError, one_line, short
from model.machine.owners import problem_of
from model.options import RunnerOptions, check_limits, flag_name, option
from model.sampling_params import RepetitionDetection

ReasoningFormat = Literal["auto", "deepseek", "none", "mistral"]
"""Where a chat has its thoughts."""
LOAD_TIMEOUT = 600.0
"""Default seconds for which requests wait for a model."""
MAX_ADAPTER_NAME = 256
"""Characters of an adapter's name."""


@dataclass(frozen=True, slots=True)
class ModelSettings(RunnerOptions):
    """The options of the runner, and those of the service for this model. None leaves the choice to the model."""

    model: str = option(
        EMBEDDED,
        "Model to serve: a directory, a .gguf file (the first of a split model), a hub name such as org/name or, for a "
        f"GGUF file of one kind, org/name:Q4_K_M, or {EMBEDDED}, which is installed.",
        is_argument=True,
        in_plan=True,
        group="Model",
    )
    revision: str | None = option(
        None, "Branch, tag or commit of a hub model.", unset="the default branch", in_plan=True, group="Model"
    )
    served_model_name: tuple[str, ...] = option(
        (), "Model id that clients use; repeat the flag for aliases.", unset="name of the hub model, folder or file"
    )
    chat_template: Path | None = option(None, "File with a Jinja chat template.", unset="the model's", group="Chat")
    reasoning_style: str = option(
        "auto",
        "How the model marks its reasoning: tokens ([THINK]) or tags (<think>). none leaves it in the answer. "
        "auto reads the tokenizer and the chat template.",
        choices=("auto", *STYLES, "none"),
    )
    reasoning_format: str = option(
        "auto",
        "Where an answer has its thoughts, unless the request or the key sets it: auto and deepseek in "
        "reasoning_content, mistral in chunks of the content, none in its text.",
        choices=get_args(ReasoningFormat),
    )
    reasoning_budget: int | None = option(
        None,
        "Maximum tokens of a thought, unless the request sets it. At the limit the thought ends with its sentence, and "
        "the answer follows.",
        unset="no limit",
        least=0,
    )
    lora: tuple[str, ...] = option(
        (),
        "LoRA adapter as NAME=PATH: requests with the model NAME use the adapter in the directory PATH. Repeat the "
        "flag for more adapters.",
        unset="none",
        group="LoRA adapters",
    )
    lora_dir: Path | None = option(
        None,
        "Directory from which POST /v1/load_lora_adapter may load adapters while the server runs.",
        unset="only --lora loads adapters",
    )
    max_queue: int = option(
        256, "Number of requests that may wait while others run. The next one gets a 429.", least=0, group="Limits"
    )
    max_queue_tokens: int = option(
        2**20, "Number of prompt tokens that may wait. While as many wait, the next request gets a 429.", least=1
    )
    max_queue_choices: int = option(
        4096,
        "Number of choices (`n` for each prompt) that may wait. While as many wait, the next request gets a 429.",
        least=1,
    )
    max_queue_media: int = option(
        2**29,
        "Bytes of decoded images and audio that may wait for their first token. While as many wait, the next request "
        "gets a 429.",
        least=1,
        is_size=True,
        in_plan=True,
    )
    repetition_detection: str | None = option(
        None,
        "End an answer that repeats itself, if the request does not say. MAX,MIN,COUNT: as soon as it ends with COUNT "
        "copies of a pattern of MIN to MAX tokens. off: never.",
        unset=f"{EMBEDDED_REPETITION} for {EMBEDDED}, otherwise off",
    )
    step_timeout: float = option(
        60.0,
        "Seconds without progress after which a sequence counts as hung, and the engine is replaced.",
        least=1,
        group="Operation",
    )
    on_engine_loss: str = option(
        "continue",
        "What a running stream does when its engine dies. continue: it goes on with the next engine, as all other "
        "answers do. error: it ends with an error.",
        choices=("continue", "error"),
    )
    load_timeout: float | None = option(
        None,
        "Where a server has several models: seconds that a load may take, and that requests wait for it.",
        unset=f"{LOAD_TIMEOUT:g}",
        least=1,
    )

    def check(self) -> None:
        """Raise OptionError for options that cannot work, before anything is started."""
        check_limits(self)
        if self.max_sequences and self.max_step_tokens and self.max_sequences > self.max_step_tokens:
            raise OptionError(
                f"--max-sequences {self.max_sequences} is more than --max-step-tokens {self.max_step_tokens}: "
                "each running sequence needs a token of every step; lower the one or raise the other"
            )
        for declared in fields(self):
            value = getattr(self, declared.name)
            if isinstance(value, tuple) and any(not item.strip() for item in value):
                raise OptionError(f"{flag_name(declared)} must not be empty")
        check_file("--chat-template", self.chat_template)
        self._check_sharding()
        self._check_prefixes()
        self.read_repetition()
        self._check_adapters()

    @property
    def names(self) -> tuple[str, ...]:
        return self.served_model_name or (default_name(self.model),)

    def read_repetition(self) -> RepetitionDetection | None:
        """Return the default of `repetition_detection`. Raises OptionError."""
        text = self.repetition_detection or (EMBEDDED_REPETITION if self.model == EMBEDDED else "off")
        if text == "off":
            return None
        try:
            sizes = [int(size) for size in text.split(",")]
            return RepetitionDetection(*sizes)
        except (ValueError, TypeError, ParameterError) as error:
            why = f": {error}" if isinstance(error, ParameterError) else ""
            raise OptionError(f"--repetition-detection must be MAX,MIN,COUNT or off, got {short(text)}{why}") from None

    @property
    def adapters_given(self) -> dict[str, Path]:
        """Return the directories of the adapters of --lora, by name. Raises OptionError."""
        found: dict[str, Path] = {}
        for text in self.lora:
            name, separator, path = text.partition("=")
            if not separator or not path:
                raise OptionError(f"--lora {text}: expected NAME=PATH")
            if (problem := adapter_name_problem(name)) is not None:
                raise OptionError(f"--lora {text}: {problem}")
            if name in found or name in self.names:
                whose = "another adapter" if name in found else "the model"
                raise OptionError(f"--lora {text}: {name!r} is the name of {whose} already")
            found[name] = Path(path).expanduser().absolute()
        return found

    def _check_prefixes(self) -> None:
        if self.prefix_store is None:
            if self.prefix_store_size is not None:
                raise OptionError("--prefix-store-size needs --prefix-store DIR")
            return
        directory = Path(self.prefix_store)
        try:
            directory.mkdir(0o700, parents=True, exist_ok=True)
            problem = problem_of(directory, directory / "lock", *filter(Path.is_dir, directory.iterdir()))
        except OSError as error:
            raise OptionError(f"--prefix-store {directory}: {one_line(error)}; expected a directory") from error
        if problem is not None:
            raise OptionError(f"--prefix-store: {problem}")

    def _check_adapters(self) -> None:
        for name, path in self.adapters_given.items():
            if not path.exists():
                raise OptionError(f"--lora {name}={path}: no such file or directory")
        if self.lora_dir is not None and not self.lora_dir.is_dir():
            raise OptionError(f"--lora-dir {self.lora_dir}: no such directory")

    def _check_sharding(self) -> None:
        for flag, value in (
            ("--lora", self.lora),
            ("--lora-dir", self.lora_dir),
            ("--prefix-store", self.prefix_store),
        ):
            if value and self.layout.size > 1:
                raise OptionError(
                    f"{flag} cannot be used with a model that {self.layout.size} ranks share; serve it with one rank"
                )


def adapter_name_problem(name: str) -> str | None:
    """Return why an adapter cannot have this name; None if it can."""
    if not name.strip() or not name.isprintable():
        return f"the name of an adapter must be printable characters, got {name[:MAX_ADAPTER_NAME]!r}"
    if len(name) > MAX_ADAPTER_NAME:
        return f"the name of an adapter must have at most {MAX_ADAPTER_NAME} characters, got {len(name)}"
    return None


def read_text(flag: str, path: Path) -> str:
    """Read the file of a flag. Raises OptionError."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{flag} {path}: cannot be read ({type(error).__name__})") from error


def check_file(flag: str, path: Path | None) -> None:
    """Raise OptionError for a path without a file."""
    if path is not None and not path.is_file():
        raise OptionError(f"{flag} {path}: no such file")
