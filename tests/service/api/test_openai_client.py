"""The openai package as a client: its users see the objects that it parses."""

import asyncio

import openai
import pytest

from tests.service.live import Live, answer, running


@pytest.fixture
def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


MESSAGES = [{"role": "user", "content": "hi"}]
PROMPT = "u:hi;a:"


def test_plain(client: openai.OpenAI) -> None:
    with client:
        chat = client.chat.completions.create(
            model="fake", messages=MESSAGES, max_tokens=5, logprobs=True, top_logprobs=1
        )
        assert chat.choices[0].message.content == answer(PROMPT, 5)
        assert "".join(item.token for item in chat.choices[0].logprobs.content) == answer(PROMPT, 5)
        assert chat.usage.prompt_tokens_details.cached_tokens == 0
        completion = client.completions.create(model="fake", prompt=["a", "b"], max_tokens=5, logprobs=1, echo=True)
        assert [choice.text for choice in completion.choices] == ["a" + answer("a", 5), "b" + answer("b", 5)]
        assert completion.choices[0].logprobs.token_logprobs[0] is None
        assert [model.id for model in client.models.list()] == ["fake", "org/alias"]
        assert client.models.retrieve("fake").owned_by == "noria"


def test_streams(client: openai.OpenAI) -> None:
    with client:
        with client.chat.completions.create(
            model="fake", messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == answer(PROMPT, 5)
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].usage.completion_tokens == 5
        with client.completions.create(model="fake", prompt="a", max_tokens=5, stream=True) as stream:
            assert "".join(chunk.choices[0].text for chunk in stream) == answer("a", 5)


def test_the_streaming_helper(client: openai.OpenAI) -> None:
    whole = answer(PROMPT, 20)
    with client, client.chat.completions.stream(model="fake", messages=MESSAGES, stop=whole[9:12]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole[: whole.index(whole[9:12])]
    assert final.choices[0].finish_reason == "stop"


def test_async_streams_in_parallel(live: Live) -> None:
    async def one(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(model="fake", prompt=prompt, max_tokens=20, stream=True)
        async with stream:
            return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of(prompts: list[str]) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts))

    prompts = [f"prompt {number}" * (number + 1) for number in range(16)]
    assert asyncio.run(all_of(prompts)) == [answer(prompt, 20) for prompt in prompts]


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="fake", messages=MESSAGES, temperature=9)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="other", messages=MESSAGES)
        assert missing.value.code == "model_not_found"


def test_a_wrong_key() -> None:
    with running(api_keys=("right",)) as live:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="right") as client:
            assert client.models.list().data[0].id == "fake"
        with (
            openai.OpenAI(base_url=f"{live.url}/v1", api_key="wrong") as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


def test_an_error_event_raises_in_the_middle_of_a_stream() -> None:
    with running(model="slow") as live, openai.OpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
        stream = client.completions.create(model="fake", prompt="a", max_tokens=300, stream=True)
        with stream:
            next(iter(stream))
            live.hosts[0].kill()
            with pytest.raises(openai.APIError, match="engine failed"):
                list(stream)
