"""Prompts of a load test: random words, with a shared prefix if there is one, or the lines of a file."""

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from model.errors import OptionError

Prompt = str | list[Any]
"""Text, token ids (a list of numbers) or messages (a list of objects)."""

# Common words: nearly every vocabulary has one token for each, which makes the number of words that of tokens.
WORDS = (  # noqa: SIM905
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face level office door health person art war history party result change morning reason research girl"
).split()


def random_prompts(lengths: Iterable[int], shared: int, seed: int) -> Iterator[Prompt]:
    """Return a text of about so many tokens for each length. The first `shared` tokens are the same in all texts.

    Equal seeds give equal texts. No length may be less than `shared`.
    """
    draw = random.Random(seed)
    prefix = draw.choices(WORDS, k=shared)
    return (" ".join(prefix + draw.choices(WORDS, k=length - shared)) for length in lengths)


def file_prompts(path: Path) -> list[Prompt]:
    """Return the prompts of a file, at least one.

    A prompt is a line of text or of JSON: a string, token ids, messages, or an object with one of these as "prompt" or
    "messages". Raises OptionError for a file that cannot be read or has no prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--prompts {path} cannot be read: {error}") from error
    prompts = [_parse(line) for line in lines if line.strip()]
    if not prompts:
        raise OptionError(f"--prompts {path} has no prompt; write one per line")
    return prompts


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


def bodies(prompts: Iterable[Prompt], endpoint: str) -> Iterator[dict[str, Any]]:
    """Yield the field of a request to `endpoint` with the prompt, for each of the prompts.

    Raises OptionError for a prompt that the endpoint does not take.
    """
    for prompt in prompts:
        messages = isinstance(prompt, list) and isinstance(prompt[0], dict)
        if endpoint == "completions" and messages:
            raise OptionError(
                "--endpoint completions takes no messages, but the prompts are messages; use --endpoint chat"
            )
        if endpoint == "chat" and isinstance(prompt, list) and not messages:
            raise OptionError(
                "--endpoint chat takes no token ids, but the prompts are token ids; use --endpoint completions"
            )
        if endpoint == "completions":
            yield {"prompt": prompt}
        else:
            yield {"messages": prompt if messages else [{"role": "user", "content": prompt}]}
