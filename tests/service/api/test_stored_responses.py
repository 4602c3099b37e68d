"""Responses with state, through the openai package: what is stored, what continues it, and who may see it."""

import json
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import openai
import pytest

from model.errors import OptionError
from service.api.responses.compact import SUMMARIZE
from service.settings import Settings
from tests.service.live import Live, answer, hurried, refused, running
from tests.waiting import eventually

PATH = "/v1/responses"
SHORT: dict[str, Any] = {"model": "fake", "max_output_tokens": 5}
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response_is_stored_and_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(**SHORT, input="hi", metadata={"run": "7"})
    assert made.store is True
    found = client.responses.retrieve(made.id)
    assert found.model_dump(exclude={"timings"}) == made.model_dump(exclude={"timings"})
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match=made.id):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made.id)


def test_a_streamed_response_is_stored_before_its_last_event(client: openai.OpenAI) -> None:
    with client.responses.create(**SHORT, input="hi", stream=True) as stream:
        for event in stream:
            if event.type in ("response.completed", "response.incomplete"):
                assert client.responses.retrieve(event.response.id).output_text == event.response.output_text


def test_what_is_not_stored_is_not_there(client: openai.OpenAI) -> None:
    made = client.responses.create(**SHORT, input="hi", store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**SHORT, input="hi", previous_response_id=made.id)
    assert (error.value.code, error.value.param) == ("previous_response_not_found", "previous_response_id")


def test_a_response_continues_another(client: openai.OpenAI) -> None:
    """The fake model answers by its prompt alone, which is that of the whole conversation without instructions."""
    first = client.responses.create(**SHORT, input="hi", instructions="be kind")
    assert first.output_text == answer("s:be kind;u:hi;a:", 5)
    second = client.responses.create(**SHORT, input="more", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    conversation = f"u:hi;a:{first.output_text};u:more;"
    assert second.output_text == answer(f"{conversation}a:", 5)
    third = client.responses.create(**SHORT, input="x", previous_response_id=second.id, instructions="be brief")
    assert third.output_text == answer(f"s:be brief;{conversation}a:{second.output_text};u:x;a:", 5)
    branch = client.responses.create(**SHORT, input="more", previous_response_id=first.id)
    assert branch.output_text == second.output_text


def test_the_prompt_of_what_continues_comes_from_the_cache(live: Live) -> None:
    """All full pages of the first prompt and of its answer."""
    text = "a long message that fills some pages of the cache, " * 4
    first = live.post(PATH, {"input": text, "max_output_tokens": 5}).json()
    second = live.post(PATH, {"input": "on", "max_output_tokens": 5, "previous_response_id": first["id"]}).json()
    cached = second["usage"]["input_tokens_details"]["cached_tokens"]
    assert 0 < first["usage"]["total_tokens"] - cached < 40


def test_calls_their_outputs_and_thoughts_continue() -> None:
    """The answer is that to the same items without a store."""
    items = [
        {"role": "user", "content": "what is it like in Paris?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "ok"}]},
    ]
    tools = [TOOL, {"type": "custom", "name": "patch"}]
    asked = {"tools": tools, "max_output_tokens": 8, "temperature": 0}
    with running(max_model_len=4096) as live:
        for cut in range(1, len(items)):
            first = live.post(PATH, asked | {"input": items[:cut]}).json()
            whole = live.post(PATH, asked | {"input": [*items[:cut], *first["output"], *items[cut:]]}).json()
            after = live.post(PATH, asked | {"input": items[cut:], "previous_response_id": first["id"]}).json()
            assert after["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
            assert texts(after) == texts(whole)


def texts(response: dict[str, Any]) -> list[str]:
    return [part["text"] for item in response["output"] for part in item.get("content", ())]


def test_a_call_of_the_model_is_continued_by_its_output() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    with running(model="recite", max_model_len=4096) as live:
        asked = {"tools": [TOOL], "max_output_tokens": 120}
        first = live.post(PATH, asked | {"input": call}).json()
        (called,) = first["output"]
        assert (called["type"], json.loads(called["arguments"])) == ("function_call", {"city": "Oslo"})
        result = [{"type": "function_call_output", "call_id": called["call_id"], "output": "cold"}]
        after = live.post(PATH, {"input": result, "previous_response_id": first["id"], "max_output_tokens": 9}).json()
        whole = live.post(PATH, {"input": [*USER(call), called, *result], "max_output_tokens": 9}).json()
        assert after["usage"]["input_tokens"] == whole["usage"]["input_tokens"]


def USER(text: str) -> list[dict[str, Any]]:  # noqa: N802
    return [{"role": "user", "content": text}]


def test_a_call_that_was_cut_is_no_part_of_the_next_prompt() -> None:
    """Its arguments are no JSON."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    with running(model="recite") as live:
        first = live.post(PATH, {"input": call, "tools": [TOOL], "max_output_tokens": 52}).json()
        (item,) = first["output"]
        assert (item["type"], item["status"]) == ("function_call", "incomplete"), first
        with pytest.raises(json.JSONDecodeError):
            json.loads(item["arguments"])
        continued = live.post(PATH, {**SHORT, "input": "hi", "previous_response_id": first["id"]})
        assert continued.status_code == 200, continued.text
        reference = [{"type": "item_reference", "id": item["id"]}]
        assert "cut short" in refused(live, PATH, {**SHORT, "input": reference})["message"]


def test_items_are_referenced(live: Live) -> None:
    first = live.post(PATH, {"input": "hi", "max_output_tokens": 5}).json()
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    asked = {"max_output_tokens": 5}
    after = live.post(PATH, asked | {"input": [*USER("hi"), reference, *USER("more")]}).json()
    assert after["output"][0]["content"][0]["text"] == answer(f"u:hi;a:{texts(first)[0]};u:more;a:", 5)
    error = refused(live, PATH, {"input": [*USER("hi"), {"type": "item_reference", "id": "msg_0"}]})
    assert (error["param"], error["code"]) == ("input[1].id", "item_not_found")


def test_input_items_are_listed(client: openai.OpenAI) -> None:
    inputs = [USER(str(number))[0] for number in range(5)]
    made = client.responses.create(**SHORT, input=inputs)  # type: ignore[arg-type]
    items = client.responses.input_items.list(made.id)
    assert [item.content[0].text for item in items] == list("43210")  # type: ignore[union-attr]
    page = client.responses.input_items.list(made.id, limit=2, order="asc")
    assert page.has_more
    assert [item.content[0].text for item in page] == list("01234")  # type: ignore[union-attr]
    after = client.responses.input_items.list(made.id, order="asc", after=page.data[1].id, include=[])
    assert [item.content[0].text for item in after.data] == list("234")  # type: ignore[union-attr]


def test_every_kind_of_item_is_listed_as_the_package_knows_it(client: openai.OpenAI) -> None:
    inputs: Any = [
        {"role": "developer", "content": "be"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"a":1}', "namespace": "n"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "o"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
        {"type": "compaction", "encrypted_content": "noria-summary:short"},
        *USER("u"),
    ]
    made = client.responses.create(**SHORT, input=inputs)
    items = [item.model_dump(exclude_none=True) for item in client.responses.input_items.list(made.id, order="asc")]
    assert [item["type"] for item in items] == [item.get("type", "message") for item in inputs]
    assert len({item["id"] for item in items}) == len(inputs)
    assert items[2]["arguments"] == '{"a": 1}'
    again = client.responses.create(**SHORT, input=items)  # type: ignore[arg-type]
    assert (again.usage and again.usage.input_tokens) == (made.usage and made.usage.input_tokens)


def test_tokens_of_the_input_are_counted(client: openai.OpenAI) -> None:
    first = client.responses.create(**SHORT, input="hi", instructions="be")
    assert first.usage is not None
    counted = client.responses.input_tokens.count(model="fake", input="hi", instructions="be")
    assert (counted.input_tokens, counted.object) == (first.usage.input_tokens, "response.input_tokens")
    after = client.responses.input_tokens.count(model="fake", input="x", previous_response_id=first.id)
    assert after.input_tokens == len(f"u:hi;a:{first.output_text};u:x;a:")


def test_logprobs_are_listed_if_they_are_included(client: openai.OpenAI) -> None:
    logprobs: Any = ["message.output_text.logprobs"]
    made = client.responses.create(**SHORT, input="hi", include=logprobs, top_logprobs=2)
    scores: Any = made.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert len(scores) == 5
    assert client.responses.retrieve(made.id).output[0].content[0].logprobs == []  # type: ignore[union-attr]
    assert client.responses.retrieve(made.id, include=logprobs).output == made.output
    assert client.responses.create(**SHORT, input="x", previous_response_id=made.id).output_text
    assert client.responses.create(**SHORT, input=[*USER("hi"), *made.output]).output_text  # type: ignore[list-item]


def test_a_conversation_too_long_loses_its_first_turns(client: openai.OpenAI) -> None:
    """The context of the fake model is 512 tokens, of a byte each."""
    turns = [item for n in range(6) for item in (*USER(f"{n}" * 100), {"role": "assistant", "content": f"{n}"})]
    asked: Any = {**SHORT, "instructions": "be", "input": [*turns, *USER("now")]}
    with pytest.raises(openai.BadRequestError, match="512"):
        client.responses.create(**asked)
    made = client.responses.create(**asked, truncation="auto")
    assert made.truncation == "auto"
    kept = "".join(f"u:{n * 100};a:{n};" for n in "2345")
    assert made.output_text == answer(f"s:be;{kept}u:now;a:", 5)
    del asked["max_output_tokens"]
    counted = client.responses.input_tokens.count(**asked, truncation="auto")
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="512"):
        client.responses.create(**SHORT, input="x" * 600, truncation="auto")


def test_what_continues_needs_no_input(client: openai.OpenAI) -> None:
    """The model goes on from what is stored."""
    first = client.responses.create(**SHORT, input="hi")
    for background in (False, True):
        second = client.responses.create(**SHORT, previous_response_id=first.id, background=background)
        while second.status in ("queued", "in_progress"):
            second = client.responses.retrieve(second.id)
        assert second.output_text == answer(f"u:hi;a:{first.output_text};a:", 5)
    made = client.conversations.create(items=USER("hi"))  # type: ignore[arg-type]
    assert client.responses.create(**SHORT, conversation=made.id).output_text == first.output_text
    counted = client.responses.input_tokens.count(model="fake", conversation=made.id)
    assert counted.input_tokens == len(f"u:hi;a:{first.output_text};a:")
    with pytest.raises(openai.BadRequestError, match="input is required") as error:
        client.responses.create(**SHORT)
    assert (error.value.param, error.value.code) == ("input", "missing_required_parameter")


# Conversations


def test_a_conversation_grows_with_its_responses(client: openai.OpenAI) -> None:
    made = client.conversations.create(items=USER("hi"), metadata={"topic": "a"})  # type: ignore[arg-type]
    first = client.responses.create(**SHORT, input="one", conversation=made.id)
    assert first.conversation is not None
    assert first.conversation.id == made.id
    assert first.output_text == answer("u:hi;u:one;a:", 5)
    with client.responses.create(**SHORT, input="two", conversation={"id": made.id}, stream=True) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == answer(f"u:hi;u:one;a:{first.output_text};u:two;a:", 5)
    items = [item.content[0].text for item in client.conversations.items.list(made.id, order="asc")]  # type: ignore[union-attr]
    assert items == ["hi", "one", first.output_text, "two", text]
    client.responses.create(**SHORT, input="three", conversation=made.id, store=False)
    assert len(list(client.conversations.items.list(made.id))) == 7


def test_conversations_are_changed_and_deleted(client: openai.OpenAI) -> None:
    made = client.conversations.create()
    assert made.metadata == {}
    assert client.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(made.id).metadata == {"a": "b"}
    added = client.conversations.items.create(made.id, items=[*USER("1"), *USER("2")])  # type: ignore[list-item]
    first = added.data[0].id
    assert first is not None
    assert client.conversations.items.retrieve(first, conversation_id=made.id).type == "message"
    client.conversations.items.delete(first, conversation_id=made.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(first, conversation_id=made.id)
    assert len(list(client.conversations.items.list(made.id))) == 1
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**SHORT, input="x", conversation=made.id)
    assert error.value.code == "conversation_not_found"


def test_a_conversation_that_is_deleted_meanwhile_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with running(model="slow") as live:
        made = live.post("/v1/conversations", {}).json()["id"]
        response = live.post(PATH, {**SHORT, "input": "hi", "conversation": made, "background": True}).json()
        live.http.delete(f"/v1/conversations/{made}")
        with hurried():
            eventually(lambda: live.state.runs.found == {}, "the end")
        assert live.http.get(f"{PATH}/{response['id']}").json()["status"] == "incomplete"
        refusal = refused(live, PATH, {**SHORT, "input": "hi", "conversation": made})
        assert refusal["message"] == f'conversation: no conversation "{made}" of this key is stored'
    assert [record.message for record in caplog.records if "conversation" in record.message]


def test_kinds_of_ids_are_not_mixed(live: Live) -> None:
    conversation = live.post("/v1/conversations", {"items": USER("hi")}).json()["id"]
    response = live.post(PATH, {"input": "hi", "max_output_tokens": 2}).json()["id"]
    assert live.http.get(f"{PATH}/{conversation}").status_code == 404
    assert live.http.get(f"/v1/conversations/{response}").status_code == 404
    assert live.http.delete(f"/v1/conversations/{response}").status_code == 404
    assert refused(live, PATH, {"input": "x", "previous_response_id": conversation})["param"] == "previous_response_id"
    assert refused(live, PATH, {"input": "x", "conversation": response})["param"] == "conversation"
    both = {"input": "x", "conversation": conversation, "previous_response_id": response}
    assert "exclude" in refused(live, PATH, both)["message"]


# Compaction


def test_a_conversation_is_summarized(client: openai.OpenAI) -> None:
    first = client.responses.create(**SHORT, input="my name is Ada")
    compacted = client.responses.compact(model="fake", input=USER("and I am 36"), previous_response_id=first.id)  # type: ignore[arg-type]
    assert compacted.object == "response.compaction"
    kinds = [item.type for item in compacted.output]
    assert kinds == ["message", "message", "compaction"]
    summary: Any = compacted.output[-1]
    words = summary.encrypted_content.removeprefix("noria-summary:")
    items: Any = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
    after = client.responses.create(**SHORT, input=[*items, *USER("how old am I?")])
    said = f"Summary of the conversation so far:\n{words}"
    assert after.output_text == answer(f"u:my name is Ada;u:and I am 36;a:{said};u:how old am I?;a:", 5)


def test_a_conversation_longer_than_the_context_is_summarized(client: openai.OpenAI) -> None:
    """As much of its end as fits beside the summary, which has a fourth of the 512 tokens."""
    turns: Any = [USER(f"{n}" * 50)[0] for n in range(9)]
    compacted = client.responses.compact(model="fake", input=turns)
    summary: Any = compacted.output[-1]
    frame = f"u:{SUMMARIZE};a:"
    n_fit = (384 - len(frame)) // len(f"u:{'0' * 50};")
    assert 1 < n_fit < 9
    prompt = "".join(f"u:{f'{n}' * 50};" for n in range(9 - n_fit, 9)) + frame
    assert summary.encrypted_content == "noria-summary:" + answer(prompt, 128).strip()
    assert compacted.usage.input_tokens == len(prompt)
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.compact(model="fake", input="x" * 600)
    assert error.value.param == "input"
    assert "max_output_tokens" not in error.value.message


def test_summaries_of_others_are_refused(live: Live) -> None:
    error = refused(live, PATH, {"input": [{"type": "compaction", "encrypted_content": "gAAAA"}, *USER("x")]})
    assert error["param"] == "input[0].encrypted_content"


# Keys, limits, files


def test_one_key_finds_nothing_of_another() -> None:
    with running(api_keys=("k", "l")) as live:
        mine, other = {"authorization": "Bearer k"}, {"authorization": "Bearer l"}
        body = {"input": "hi", "max_output_tokens": 3}
        response = live.post(PATH, body, headers=mine).json()
        conversation = live.post("/v1/conversations", {"items": USER("a")}, headers=mine).json()["id"]
        item = live.http.get(f"/v1/conversations/{conversation}/items", headers=mine).json()["data"][0]["id"]
        id, out = response["id"], response["output"][0]["id"]
        paths = [f"{PATH}/{id}", f"{PATH}/{id}?stream=true", f"{PATH}/{id}/input_items"]
        talks = f"/v1/conversations/{conversation}"
        paths += [talks, f"{talks}/items", f"{talks}/items/{item}"]
        for path in paths:
            theirs = live.http.get(path, headers=other)
            unknown = live.http.get(path.replace(id, "resp_0").replace(conversation, "conv_0"), headers=other)
            assert (theirs.status_code, unknown.status_code) == (404, 404)
            assert words(theirs, id, conversation) == words(unknown, "resp_0", "conv_0")
        for path in (f"{PATH}/{id}", talks, f"{talks}/items/{item}"):
            assert live.http.delete(path, headers=other).status_code == 404
        reference = {"type": "item_reference", "id": out}
        for path, body, status in (
            (f"{PATH}/{id}/cancel", {}, 404),
            (talks, {"metadata": {"a": "b"}}, 404),
            (f"{talks}/items", {"items": USER("x")}, 404),
            ("/v1/conversations", {"items": [reference]}, 400),
            (f"{PATH}/compact", {"model": "fake", "previous_response_id": id}, 400),
            (f"{PATH}/compact", {"model": "fake", "input": [reference]}, 400),
        ):
            assert live.post(path, body, headers=other).status_code == status
        for body in (
            {"input": "x", "previous_response_id": id},
            {"input": "x", "conversation": conversation},
            {"input": [*USER("x"), reference]},
        ):
            assert live.post(PATH, body, headers=other).status_code == 400
            assert live.post(PATH, body | {"background": True}, headers=other).status_code == 400
            assert live.post(f"{PATH}/input_tokens", body, headers=other).status_code == 400
            assert live.post(PATH, body | {"max_output_tokens": 2}, headers=mine).status_code == 200
        assert live.http.get(f"{PATH}/{id}", headers=mine).json()["output"] == response["output"]
        found = live.http.get(f"{talks}/items", headers=mine).json()
        assert len(found["data"]) == 3, "only the owner's response has made it longer"


def words(response: Any, *ids: str) -> str:
    text = response.json()["error"]["message"]
    for id in ids:
        text = text.replace(id, "ID")
    return text


def test_limits_of_a_key_hold(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    entries = [{"name": "a", "key": "k", "stored_responses": 2}, {"name": "b", "key": "l", "stored_bytes": 3000}]
    path.write_text(json.dumps({"keys": entries}))
    with running(api_key_file=path) as live:
        for key, n_stored in (("k", 2), ("l", 1)):
            headers = {"authorization": f"Bearer {key}"}
            ids = [
                live.post(PATH, {"input": "hi", "max_output_tokens": 3}, headers=headers).json()["id"] for _ in range(4)
            ]
            found = [live.http.get(f"{PATH}/{id}", headers=headers).status_code for id in ids]
            assert found == [404] * (4 - n_stored) + [200] * n_stored
        large = {"input": "x" * 400, "max_output_tokens": 3, "metadata": {str(n): "x" * 500 for n in range(5)}}
        made = live.post(PATH, large, headers={"authorization": "Bearer l"}).json()
        assert (made["status"], made["store"]) == ("incomplete", False)
        refusal = live.post(PATH, large | {"background": True}, headers={"authorization": "Bearer l"})
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "store_full")


def test_memory_is_bounded() -> None:
    with running(responses_store_size=20_000) as live:
        ids = [live.post(PATH, {"input": "x" * 300, "max_output_tokens": 3}).json()["id"] for _ in range(20)]
        kept = [id for id in ids if live.http.get(f"{PATH}/{id}").status_code == 200]
        assert kept == ids[-len(kept) :]
        assert 2 < len(kept) < 15


def test_a_history_is_no_larger_than_a_body() -> None:
    """What a client without a store could not send is not read from the store either."""
    text = "x" * 2000
    with running(max_body_bytes=9000, max_model_len=2**14) as small:
        asked = {"input": text, "max_output_tokens": 2}
        ids = [small.post(PATH, asked).json()["id"]]
        while (after := small.post(PATH, asked | {"previous_response_id": ids[-1]})).status_code == 200:
            ids.append(after.json()["id"])
        assert (after.status_code, after.json()["error"]["code"]) == (413, "history_too_large")
        assert "the limit is 9000" in after.json()["error"]["message"]
        assert 2 <= len(ids) < 5
        items = [small.http.get(f"{PATH}/{id}/input_items").json()["data"][0]["id"] for id in ids]
        references = [{"type": "item_reference", "id": item} for item in items]
        assert small.post(PATH, asked | {"input": references[:2]}).status_code == 200
        talk = small.post("/v1/conversations", {}).json()["id"]
        for _ in range(5):
            small.post(f"/v1/conversations/{talk}/items", {"items": USER(text)})
        assert small.post(PATH, asked | {"conversation": talk}).json()["error"]["code"] == "history_too_large"


def test_metrics_say_what_is_stored() -> None:
    with running(max_model_len=4096) as live:
        assert live.metric("noria_responses_stored") == live.metric("noria_responses_stored_bytes") == 0
        id = live.post(PATH, {"input": "hi" * 500, "max_output_tokens": 2}).json()["id"]
        live.post(PATH, {"input": "hi", "max_output_tokens": 2, "store": False})
        live.post("/v1/conversations", {})
        assert live.metric("noria_responses_stored") == 2
        assert 1000 < live.metric("noria_responses_stored_bytes") < 5000
        live.http.delete(f"{PATH}/{id}")
        assert live.metric("noria_responses_stored") == 1
        assert live.metric("noria_responses_stored_bytes") < 1000


def test_a_file_survives_a_restart(tmp_path: Path) -> None:
    place = {"responses_store": str(tmp_path / "responses.db")}
    with running(**place) as live:
        made = live.post(PATH, {"input": "hi", "max_output_tokens": 3}).json()
        conversation = live.post("/v1/conversations", {"items": USER("a")}).json()
    with running(**place) as live:
        found = live.http.get(f"{PATH}/{made['id']}").json()
        assert found == {name: value for name, value in made.items() if name != "timings"}
        assert live.http.get(f"/v1/conversations/{conversation['id']}").json() == conversation
        after = live.post(PATH, {"input": "x", "previous_response_id": made["id"], "max_output_tokens": 5}).json()
        assert texts(after)[0] == answer(f"u:hi;a:{texts(made)[0]};u:x;a:", 5)


@pytest.mark.parametrize("wrong", [{"responses_store": ":memory:"}, {"resume_seconds": inf}, {"resume_seconds": nan}])
def test_wrong_flags_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="--re"):
        Settings(model="fake", **wrong).check()


def test_without_a_store_nothing_is_stored() -> None:
    with running(responses_store="off") as live:
        plain = live.post(PATH, {"input": "hi", "max_output_tokens": 3})
        assert (plain.json()["store"], plain.headers.get("x-noria-ignored")) == (False, None)
        asked = live.post(PATH, {"input": "hi", "max_output_tokens": 3, "store": True})
        assert (asked.json()["store"], asked.headers["x-noria-ignored"]) == (False, "store")
        for field, value in (("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True)):
            error = refused(live, PATH, {"input": "hi", field: value})
            assert (error["param"], error["code"]) == (field, "store_off")
        assert refused(live, "/v1/conversations", {})["code"] == "store_off"
        assert live.http.get(f"{PATH}/resp_1").json()["error"]["code"] == "store_off"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=yes", "stream"),
        ("starting_after=1", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true", "stream"),
        ("include[]=x", "include"),
    ],
)
def test_queries_are_checked(live: Live, query: str, param: str) -> None:
    id = live.post(PATH, {"input": "hi", "max_output_tokens": 3}).json()["id"]
    response = live.http.get(f"{PATH}/{id}?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
    assert (response.json()["error"]["code"] == "not_background") == (query == "stream=true")


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=x", "after")]
)
def test_queries_of_lists_are_checked(live: Live, query: str, param: str) -> None:
    id = live.post(PATH, {"input": "hi", "max_output_tokens": 3}).json()["id"]
    response = live.http.get(f"{PATH}/{id}/input_items?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
