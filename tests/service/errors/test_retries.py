"""Clients do not send again what never succeeds: the rules of the openai package, which those of anthropic equal."""

import httpx2
import openai
import pytest

from service.errors.dialects import OPENAI, error_response
from service.errors.errors import HttpError
from service.errors.statuses import STATUSES
from tests.service.live import Live


@pytest.mark.parametrize("status", sorted(STATUSES))
def test_which_statuses_are_sent_again(status: int) -> None:
    sent = 0

    def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal sent
        sent += 1
        response = error_response(HttpError(status, "x", {"retry-after-ms": "1"}), OPENAI)
        return httpx2.Response(response.status_code, headers=dict(response.headers), content=bytes(response.body))

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = openai.OpenAI(api_key="k", base_url="http://test", http_client=http, max_retries=1)
        with pytest.raises(openai.APIStatusError) as caught:
            client.models.list()
    assert caught.value.status_code == status
    assert sent == (2 if status in (408, 429, 500, 503) else 1)


def test_refusals_of_the_server_say_so(live: Live) -> None:
    refusals = [
        live.post("/v1/chat/completions", {"messages": "x"}),
        live.post("/v1/messages", {"messages": "x"}),
        live.http.get("/nowhere"),
        live.http.get("/v1/completions"),
    ]
    assert [(reply.status_code, reply.headers["x-should-retry"]) for reply in refusals] == [
        (400, "false"),
        (400, "false"),
        (404, "false"),
        (405, "false"),
    ]
