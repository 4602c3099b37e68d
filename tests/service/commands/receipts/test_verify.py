"""`noria verify` with the fake model: what is equal, and each field that is changed."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.receipts.keys import make_key, read_key
from tests.service.command_line import Done, noria
from tests.service.live import USER, Live
from tests.service.receipts.signing import lie, signing, write

BODY = {"messages": USER, "max_tokens": 6, "temperature": 0.8, "n": 2}
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verify")


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    with signing(folder) as server:
        yield server


@pytest.fixture(scope="module")
def answered(live: Live) -> dict[str, Any]:
    """An answer with two choices and their receipts."""
    return live.post(CHAT, {**BODY, "receipt": True}).json()


def verify(live: Live, folder: Path, receipt: Any, *more: str | Path, body: Any = BODY) -> Done:
    """Verify a receipt, or an answer, with this body of a request; None: without one."""
    request = [] if body is None else ["--request", write(folder / "request.json", body)]
    return noria("verify", write(folder / "receipt.json", receipt), "--url", live.url, *request, *more)


def test_equal(live: Live, folder: Path, answered: dict[str, Any], tmp_path: Path) -> None:
    public = read_key(folder / "key.pem").public
    done = verify(live, tmp_path, answered, "--key", public)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third = done.stdout.splitlines()
    assert first == f"signature: valid, by the key {public}"
    assert second.startswith("equal bits: not promised: ")
    assert third == "equal: 12 tokens, computed again"
    (tmp_path / "key.pub").write_text(f"{public}\n")
    assert verify(live, tmp_path, answered["receipts"][1], "--key", tmp_path / "key.pub").returncode == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "BC"], "n": 2, "max_tokens": 4, "stream": True, "timeout": 60}),
        ("/v1/fim/completions", {"prompt": "a", "max_tokens": 4, "random_seed": 5}),
        ("/v1/messages", {"messages": USER, "max_tokens": 4, "stream": True}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 4, "model": "org/alias"}),
        (CHAT, {"messages": USER, "n_predict": 4, "stream": True, "return_progress": True, "logprobs": True}),
        ("/v1/completions", {"prompt": "a", "echo": True, "max_tokens": 4, "best_of": 3}),
    ],
)
def test_every_api_streamed_or_not(live: Live, path: str, body: dict[str, Any], tmp_path: Path) -> None:
    given = {**body, "receipt": "full"}
    answer = live.events(path, given)[-1] if body.get("stream") else live.post(path, given).json()
    assert verify(live, tmp_path, answer, body=None).returncode == 0
    bare = [{name: value for name, value in one.items() if name != "content"} for one in answer["receipts"]]
    done = verify(live, tmp_path, {"receipts": bare}, body=given)
    assert "\nequal: " in done.stdout, done.stdout


def changed(answer: dict[str, Any], place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """The answer with another value at a place, or without the item there if the value is None."""
    made = inside = copy.deepcopy(answer)
    for name in place[:-1]:
        inside = inside[name]  # type: ignore[index]
    if value is None:
        del inside[place[-1]]  # type: ignore[arg-type]
    else:
        inside[place[-1]] = value  # type: ignore[index]
    return made


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (CHAT, {"messages": USER, "n": 2}, ("choices", 1, "message", "content")),
        ("/v1/completions", {"prompt": "a", "echo": True}, ("choices", 0, "text")),
        ("/v1/fim/completions", {"prompt": "a"}, ("choices", 0, "message", "content")),
        ("/v1/messages", {"messages": USER}, ("content", 0, "text")),
        (RESPONSES, {"input": "hi"}, ("output", 0, "content", 0, "text")),
        (RESPONSES, {"input": "hi", "stream": True}, ("response", "output", 0, "content", 0, "text")),
    ],
)
def test_a_changed_text_of_an_answer_is_found(
    live: Live, path: str, body: dict[str, Any], place: tuple[str | int, ...], tmp_path: Path
) -> None:
    given = {**body, ("max_output_tokens" if path == RESPONSES else "max_tokens"): 4, "receipt": True}
    answer = live.events(path, given)[-1] if body.get("stream") else live.post(path, given).json()
    assert verify(live, tmp_path, answer, body=given).returncode == 0
    index = place[1] if place[0] == "choices" else 0
    done = verify(live, tmp_path, changed(answer, place, "Transfer all."), body=given)
    assert (done.returncode, f"choices[{index}]: its text is not the signed one" in done.stdout) == (3, True)
    done = verify(live, tmp_path, changed(answer, place, "Transfer all."), "--signature-only", body=None)
    assert done.returncode == 3


def test_a_choice_too_few_or_too_many_is_found(live: Live, answered: dict[str, Any], tmp_path: Path) -> None:
    done = verify(live, tmp_path, changed(answered, ("choices", 1), None))
    assert (done.returncode, "choices: the answer has 1, and 2 receipts" in done.stdout) == (3, True)
    done = verify(live, tmp_path, changed(changed(answered, ("choices", 1), None), ("receipts", 1), None))
    assert (done.returncode, "choices: 1 in the answer, 2 here" in done.stdout) == (3, True)


def test_a_text_that_the_file_does_not_have_is_said_to_be_not_compared(
    live: Live, answered: dict[str, Any], tmp_path: Path
) -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    end = {"choices": [{"index": 0, "delta": {}}], "receipts": answered["receipts"]}
    for answer in (changed(answered, ("choices", 0, "message"), calls), end):
        done = verify(live, tmp_path, answer)
        assert (done.returncode, "text: not all of the answer is compared" in done.stdout) == (0, True)
    assert "not all" not in verify(live, tmp_path, answered).stdout


CHANGES: dict[str, Any] = {
    "version": "9",
    "created": 1,
    "model": "another",
    "weights": "sha256:00",
    "adapter": {"name": "blue", "files": "sha256:00"},
    "windows": [7],
    "softmax_scale": "0.5",
    "arithmetic": {
        "bits": "x86-1",
        "quantize": "",
        "dtype": "",
        "kv_dtype": "",
        "kernels": "",
        "device": "fake",
    },
    "prompt": "sha256:00",
    "images": ["00"],
    "request": "sha256:00",
    "defaults": {"repetition_detection": "64,4,3", "reasoning_budget": 9},
    "seed": "5",
    "max_tokens": 5,
    "choice": 1,
    "finish": "stop",
    "n_tokens": 5,
    "tokens": "sha256:00",
    "marks": "0" * 24,
    "text": "sha256:00",
    "key": "RHJoof0AdOLvHGt1pyHqcHi12jtM+Rm1Fo6brj6KEUk=",
    "signature": "00",
}
STATED = {"version", "created", "model", "arithmetic", "defaults", "key", "signature"}
NAMED = {"seed": "request", "choice": "request", "n_tokens": "marks", "marks": "tokens"}
"""The field that verify names for a changed one, where it is another."""


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_field_is_found_and_named(live: Live, answered: dict[str, Any], field: str, tmp_path: Path) -> None:
    receipt = answered["receipts"][0]
    assert receipt[field] != CHANGES[field]
    if field == "adapter":  # the server has none: the request cannot be computed
        done = verify(live, tmp_path, {**receipt, field: CHANGES[field]})
        assert (done.returncode, "'blue' does not exist" in done.stderr.replace('"', "'")) == (1, True)
        return
    done = verify(live, tmp_path, {**receipt, field: CHANGES[field]})
    assert done.returncode == 3, done.stdout
    assert "signature: a field of the receipt, its key or its signature was changed" in done.stdout
    named = [line.partition(":")[0] for line in done.stdout.splitlines()]
    if field in STATED:
        assert "what was changed is not computed again: one of version, created, model" in done.stdout
    else:
        assert NAMED.get(field, field) in named, done.stdout


def test_every_field_is_tried(answered: dict[str, Any]) -> None:
    assert CHANGES.keys() | {"format", "endpoint"} == answered["receipts"][0].keys()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "noria-receipt-2"}, "format: Input should be 'noria-receipt-1'"),
        ({"seed": "x"}, "seed: "),
        ({"created": 2**53}, "created: Input should be less than"),
        ({"content": {"body": "{", "text": "", "token_ids": []}}, "the body in the receipt is not JSON"),
        ({"content": {"body": "[]", "text": "", "token_ids": []}}, "the body in the receipt must be a JSON object"),
        ({"content": {"body": "{}", "text": "", "token_ids": [-1]}}, "content.token_ids.0: Input should be greater"),
        ({"note": "checked"}, "note: Extra inputs are not permitted"),
        ({"n_tokens": "6"}, "n_tokens: Input should be a valid integer"),
        ({"finish": "timeout", "n_tokens": 0}, "time cut the answer before its first token"),
        ({"endpoint": "/v1/embeddings"}, "endpoint must be one of /v1/chat/completions"),
    ],
)
def test_what_cannot_be_read_is_refused(
    live: Live, answered: dict[str, Any], changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    done = verify(live, tmp_path, {**answered["receipts"][0], **changes}, body=None if "content" in changes else BODY)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert words in done.stderr


def test_a_lie_is_found_by_computing_again(live: Live, folder: Path, answered: dict[str, Any], tmp_path: Path) -> None:
    """The fake engine promises no bits, so a differing answer alone gets the exit code 4."""
    receipt = answered["receipts"][0]
    marks = receipt["marks"]
    done = verify(live, tmp_path, lie(receipt, folder, marks=marks[:8] + "ffff" + marks[12:]))
    assert done.returncode == 4
    assert "signature: valid" in done.stdout
    assert "tokens: token 3 of 6 differs: another in the receipt, " in done.stdout
    assert "no proof of a fault" in done.stdout
    for change in ({"weights": "sha256:00"}, {"seed": "5"}, {"max_tokens": 5}):
        assert verify(live, tmp_path, lie(receipt, folder, **change)).returncode == 3, change


def test_a_full_receipt_names_both_tokens(live: Live, folder: Path, tmp_path: Path) -> None:
    (receipt,) = live.post("/v1/completions", {"prompt": "a", "max_tokens": 4, "receipt": "full"}).json()["receipts"]
    ids = receipt["content"]["token_ids"]
    changed = {**receipt["content"], "token_ids": [ids[0], 65, *ids[2:]]}
    done = verify(live, tmp_path, lie(receipt, folder, content=changed), body=None)
    assert "content.token_ids: their hash is not that of the field tokens" in done.stdout
    assert f"tokens: token 2 of 4 differs: 65 'A' in the receipt, {ids[1]} {chr(ids[1])!r} here" in done.stdout
    assert done.returncode == 3


def test_another_request_is_named(live: Live, answered: dict[str, Any], tmp_path: Path) -> None:
    done = verify(live, tmp_path, answered, body={**BODY, "messages": [{"role": "user", "content": "ho"}]})
    assert done.returncode == 3
    assert "prompt: the prompt has other tokens or images" in done.stdout
    done = verify(live, tmp_path, answered, body={**BODY, "temperature": 0.1})
    named = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert (done.returncode, named.count("request"), "prompt" in named) == (3, 2, False)


@pytest.mark.parametrize("field", ["seed", "random_seed", "max_tokens", "max_completion_tokens", "n_predict"])
def test_the_request_keeps_its_own_seed_and_limit(
    live: Live, answered: dict[str, Any], field: str, tmp_path: Path
) -> None:
    """A server that took another seed than the client sent is found."""
    body = {name: value for name, value in BODY.items() if name != "max_tokens"}
    done = verify(live, tmp_path, answered, body={**body, "max_tokens": None, field: 5})
    named = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert done.returncode == 3
    assert {"request", "seed" if "seed" in field else "max_tokens"} <= {*named}


def test_a_server_with_other_defaults_is_not_asked(live: Live, answered: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is compared, unless the request sets what they are for. Then they change no token."""
    own = {"repetition_detection": {"max_pattern_size": 64, "min_pattern_size": 2, "min_count": 50}}
    with signing(tmp_path, repetition_detection="64,4,3") as other:
        (receipt,) = other.complete(prompt="a", max_tokens=4, receipt=True)["receipts"]
        (same,) = other.complete(prompt="a", max_tokens=4, receipt=True, **own)["receipts"]
    done = verify(live, tmp_path, receipt, body={"prompt": "a", "max_tokens": 4})
    words = "the defaults of the server are others: {'repetition_detection': '64,4,3', 'reasoning_budget': None} in the"
    assert (done.returncode, words in done.stderr) == (1, True), done
    done = verify(live, tmp_path, same, body={"prompt": "a", "max_tokens": 4, **own})
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "equal: 4 tokens, computed again")


def test_an_answer_that_time_cut_is_the_beginning_of_the_whole_one(tmp_path: Path) -> None:
    with signing(tmp_path, model="slow") as slow:
        body = {"prompt": "long", "max_tokens": 40, "timeout": 0.4}
        (receipt,) = slow.complete(**body, receipt=True)["receipts"]
        assert receipt["finish"] == "timeout"
        done = verify(slow, tmp_path, receipt, body=body)
        changed = verify(slow, tmp_path, lie(receipt, tmp_path, tokens="sha256:00"), body=body)
    assert (changed.returncode, "\ntokens: sha256:00 in the receipt, sha256:" in changed.stdout) == (4, True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        f"equal: {receipt['n_tokens']} tokens, computed again",
    )


def test_without_the_request_only_the_signature_is_checked(
    live: Live, answered: dict[str, Any], tmp_path: Path
) -> None:
    refused = verify(live, tmp_path, answered, body=None)
    assert refused.returncode == 1
    assert "hashes only" in refused.stderr
    assert "--signature-only" in refused.stderr
    assert "its server with --url" in refused.stderr
    done = noria("verify", tmp_path / "receipt.json", "--signature-only")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    write(tmp_path / "receipt.json", {**answered["receipts"][0], "created": 1})
    assert noria("verify", tmp_path / "receipt.json", "--signature-only").returncode == 3


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_what_another_server_has_stored_is_not_computed(live: Live, field: str, tmp_path: Path) -> None:
    body = {"input": "and", field: "resp_1", "max_output_tokens": 4}
    (receipt,) = live.post(RESPONSES, {"input": "hi", "max_output_tokens": 4, "receipt": True}).json()["receipts"]
    done = verify(live, tmp_path, receipt, body=body)
    assert (done.returncode, f'{field} must be null, got "resp_1"' in done.stderr) == (1, True), done.stderr


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all that a receipt contains and is no container."""
    if not isinstance(value, dict | list):
        yield path
    for name, one in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from texts(one, (*path, name))


def with_other(value: Any, path: tuple[Any, ...], place: int) -> Any:
    """A copy in which one character, or one number, is another."""
    if not path and isinstance(value, str) and value:
        place %= len(value)
        return value[:place] + chr(ord(value[place]) + 1) + value[place + 1 :]
    if not path:
        return value + 1 if isinstance(value, int) else "x"
    copy = {**value} if isinstance(value, dict) else [*value]
    copy[path[0]] = with_other(value[path[0]], path[1:], place)
    return copy


def test_no_changed_character_passes(live: Live, tmp_path: Path) -> None:
    """The last characters of a signature have bits that mean nothing, and are checked too."""
    body = {"prompt": "a", "max_tokens": 3, "receipt": "full"}
    (receipt,) = live.post("/v1/completions", body).json()["receipts"]
    paths = [*texts(receipt)]
    assert {path[0] for path in paths} | {"images"} == receipt.keys()
    for path in paths:
        for place in (0, -2, -3):
            changed = with_other(receipt, path, place)
            assert changed != receipt
            done = noria("verify", write(tmp_path / "receipt.json", changed), "--signature-only")
            assert done.returncode in (1, 3), (path, place, done.stdout)
    for more in ({"images": ["00"]}, {"windows": []}, {"note": "checked"}, {"adapter": {"name": "", "files": ""}}):
        done = noria("verify", write(tmp_path / "receipt.json", {**receipt, **more}), "--signature-only")
        assert done.returncode in (1, 3), more


def test_a_signature_is_of_one_receipt_alone(answered: dict[str, Any], tmp_path: Path) -> None:
    one, other = answered["receipts"]
    write(tmp_path / "receipt.json", {**one, "signature": other["signature"]})
    assert noria("verify", tmp_path / "receipt.json", "--signature-only").returncode == 3


def test_all_keys_are_named(live: Live, answered: dict[str, Any], tmp_path: Path) -> None:
    with signing(tmp_path) as other:
        foreign = other.post(CHAT, {**BODY, "receipt": True}).json()["receipts"]
    write(tmp_path / "receipt.json", {"receipts": [*answered["receipts"], *foreign]})
    done = noria("verify", tmp_path / "receipt.json", "--signature-only")
    keys = f"{answered['receipts'][0]['key']}, {foreign[0]['key']}"
    assert (done.returncode, done.stdout) == (0, f"signature: valid, by the key {keys}\n")
    done = noria("verify", tmp_path / "receipt.json", "--signature-only", "--key", foreign[0]["key"])
    assert done.returncode == 3


def test_another_key_is_not_the_servers(answered: dict[str, Any], tmp_path: Path) -> None:
    other = make_key(tmp_path / "other.pem").public
    write(tmp_path / "receipt.json", answered)
    done = noria("verify", tmp_path / "receipt.json", "--signature-only", "--key", other)
    assert done.returncode == 3
    assert f"expected {other}" in done.stdout
    wrong = noria("verify", tmp_path / "receipt.json", "--signature-only", "--key", "abc")
    assert (wrong.returncode, "--key must be a public key" in wrong.stderr) == (1, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "is no receipt of a known format"),
        ('{"receipts": [{}]}', "receipts[0] is no receipt"),
        ('{"receipts": []}', 'has no receipts: a request gets them with "receipt": true'),
        ('{"choices": []}', "has no receipts"),
        ('{"format": "noria-receipt-0"}', "is no receipt of a known format: format: Input should be"),
        ("[" * 100_000, "is not JSON"),
        ('{"format": "\\ud800"}', "is not JSON"),
    ],
)
def test_other_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    done = noria("verify", tmp_path / "file", "--signature-only")
    assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (1, True, 1), done.stderr
