"""What a load test asks: random words that share no prefix unless told to, or the lines of a file."""

import json
import random
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from model.errors import OptionError

Prompt = str | list[Any]
"""Text, token ids (a list of numbers) or messages (a list of objects)."""

# Common enough to be one token each in nearly every vocabulary, so that words count as tokens.
WORDS = (  # noqa: SIM905
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face level office door health person art war history party result change morning reason research girl"
).split()


def random_prompts(count: int, tokens: int, shared: int, seed: int) -> list[Prompt]:
    """`count` texts of about `tokens` tokens; the first `shared` of them are the same in all. Equal for equal seeds.

    Raises OptionError when more is shared than there is.
    """
    if shared > tokens:
        raise OptionError(f"--shared-prefix ({shared}) must be at most --input-tokens ({tokens})")
    draw = random.Random(seed)
    prefix = draw.choices(WORDS, k=shared)
    return [" ".join(prefix + draw.choices(WORDS, k=tokens - shared)) for _ in range(count)]


def file_prompts(path: Path, count: int | None) -> list[Prompt]:
    """One prompt a line, from the top again when `count` is greater than the file; None takes each line once.

    A line is text, or JSON: a string, token ids, messages, or an object that holds these as "prompt" or "messages".
    Raises OptionError for a file that cannot be read or holds no prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--prompts {path} cannot be read: {error}") from error
    prompts = [_parse(line) for line in lines if line.strip()]
    if not prompts:
        raise OptionError(f"--prompts {path} holds no prompt; give it one a line")
    return list(islice(cycle(prompts), count or len(prompts)))


def _parse(line: str) -> Prompt:
    if not line.lstrip().startswith(('"', "[", "{")):
        return line
    try:
        value = json.loads(line)
    except ValueError:
        return line
    if isinstance(value, dict):
        value = value.get("prompt", value.get("messages"))
    if not value or not isinstance(value, str | list):
        raise OptionError(f'a JSON prompt must be a string, a list, or have "prompt" or "messages", found {line[:80]}')
    return value


def bodies(prompts: list[Prompt], endpoint: str, common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each prompt as the JSON of a request to `endpoint`, with the fields `common` to all.

    Raises OptionError for a prompt that the endpoint cannot take.
    """
    for prompt in prompts:
        messages = isinstance(prompt, list) and isinstance(prompt[0], dict)
        if endpoint == "completions" and messages:
            raise OptionError("the prompts hold messages, which --endpoint completions does not take; use chat")
        if endpoint == "chat" and isinstance(prompt, list) and not messages:
            raise OptionError("the prompts hold token ids, which --endpoint chat does not take; use completions")
        if endpoint == "completions":
            yield {**common, "prompt": prompt}
        else:
            yield {**common, "messages": prompt if messages else [{"role": "user", "content": prompt}]}
