"""`noria explain`: what is wrong with a server, in one sentence, with the figures that say so and the remedy."""

import json
from dataclasses import dataclass
from pathlib import Path

import httpx

from model.errors import OptionError
from model.options import option
from service.commands.endpoint import base_url, fetch, headers, refusal
from service.commands.flags import takes
from service.recording.explain import explain


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The options of `noria explain`."""

    source: str = option("http://127.0.0.1:8000", "Address of a server, or a file of --record-dir.", is_argument=True)
    api_key: str | None = option(None, "API key of the server; its entry needs sees_all.")


@takes(ExplainOptions, "NORIA_EXPLAIN_")
def explain_server(options: ExplainOptions) -> None:
    """Say in one sentence what is wrong with a server, or was when a record was written.

    The figures that say so follow, then the remedy.
    """
    try:
        rule, sentence, figures = explain(json.loads(_read(options)))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OptionError(f"{options.source} is no record of Noria: {error}") from error
    more = f"More: {rule.section} in docs/operations.md; {rule.name or 'what noria explain says'} in docs/trouble.md"
    print(sentence, *(f"  {line}" for line in figures), rule.remedy, more, sep="\n")


def _read(options: ExplainOptions) -> bytes:
    if "://" not in options.source:
        return Path(options.source).read_bytes()
    with httpx.Client(base_url=base_url(options.source), headers=headers(options.api_key)) as client:
        response = fetch(client, "/v1/engine/record")
    if not response.is_success:
        raise OptionError(f"/v1/engine/record answered {response.status_code}: {refusal(response)}")
    return response.content
