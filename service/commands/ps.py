"""`noria ps`: the requests that a server runs and lets wait."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from model.errors import OptionError
from model.options import option
from service.commands.endpoint import base_url, fetch, headers, refusal
from service.commands.flags import takes

HEAD = ("ID", "KEY", "CLIENT", "MODEL", "STATE", "AGE", "IN", "OUT", "HELD")


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
    found = response.json()["data"]
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        rows = [*_rows(found)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(map(str.ljust, row, widths)).rstrip())


def _rows(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield HEAD
    for item in found:
        state = item["state"] + (f":{item['reason']}" if item["reason"] else "")
        numbers = (item["prompt_tokens"], item["generated_tokens"], item["held_tokens"])
        texts = (item["id"], item["key"], item["client"], item["model"], state, f"{item['age_seconds']:.0f}s")
        yield *(text or "-" for text in texts), *("-" if number is None else str(number) for number in numbers)
