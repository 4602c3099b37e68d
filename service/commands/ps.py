"""`noria ps`: the requests that a server runs and lets wait."""

import json
from dataclasses import dataclass

import httpx

from model.errors import OptionError
from model.options import option
from service.commands.endpoint import base_url, fetch, headers, refusal
from service.commands.flags import takes

NUMBERS = {"SECONDS": "age_seconds", "IN": "prompt_tokens", "OUT": "generated_tokens", "HELD": "held_tokens"}
COLUMNS = {**{name.upper(): name for name in ("id", "key", "client", "model", "state", "reason")}, **NUMBERS}


@dataclass(frozen=True, slots=True)
class PsOptions:
    """The options of `noria ps`."""

    url: str = option("http://127.0.0.1:8000", "Address of the server.")
    api_key: str | None = option(None, "API key of the server; its entry needs sees_all.")
    json: bool = option(False, "Print JSON.")


@takes(PsOptions, "NORIA_PS_")
def ps(options: PsOptions) -> None:
    """List the requests that a server runs, and those that wait.

    Those that hold most tokens of the KV cache come first. DELETE /v1/requests/ID cancels one.
    """
    with httpx.Client(base_url=base_url(options.url), headers=headers(options.api_key)) as client:
        response = fetch(client, "/v1/requests")
    if not response.is_success:
        raise OptionError(f"/v1/requests answered {response.status_code}: {refusal(response)}")
    try:
        found = response.json()["data"]
        rows = [[*COLUMNS], *([_cell(item[name]) for name in COLUMNS.values()] for item in found)]
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{options.url} lists no requests at /v1/requests; is it Noria?") from error
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    print(json.dumps(found, indent=1) if options.json else "\n".join(lines))


def _cell(value: str | float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)
