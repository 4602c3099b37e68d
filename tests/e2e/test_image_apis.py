"""Two images over the three chat APIs of a real server, against transformers with the same weights."""

import base64
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from service.receipts.keys import make_key
from tests.e2e.server import LiveServer, serving
from tests.model import pixtral
from tests.model.checkpoint.adapter_files import ATTENTION, save_peft
from tests.model.pixtral import IMG, IMG_BREAK, IMG_END, NAMES
from tests.service.command_line import noria

Json = dict[str, Any]
N_TOKENS = 12
PATCHES = {"mistral3": (14, 2, 140), "llava": (16, 1, 128)}
"""Pixels of a patch, patches of a token's side, and the longest side of an image."""


def photograph(width: int, height: int, seed: int) -> Image.Image:
    """Colours that change smoothly, so that each filter gives other pixels."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.randint(0, 256, (5, 5, 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(small.numpy()).resize((width, height), Image.Resampling.BILINEAR)


IMAGES = [photograph(100, 60, 1), photograph(170, 300, 2)]
"""The second is longer than either model takes."""


def data_of(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def characters(text: str) -> list[int]:
    return [len(NAMES) + byte for byte in text.encode()]


def expected(kind: str) -> list[int]:
    """The tokens that transformers generates for "a IMAGE b IMAGE c"."""
    patch, merge, longest = PATCHES[kind]
    side = patch * merge
    processor = PixtralImageProcessorPil(size={"longest_edge": longest}, patch_size={"height": side, "width": side})
    images = processor(IMAGES, return_tensors="pt")
    begin, end = NAMES.index("[INST]"), NAMES.index("[/INST]")
    ids = [NAMES.index("<s>"), begin, *characters("a")]
    for size, text in zip(images["image_sizes"], ("b", "c"), strict=True):
        rows, columns = (int(pixels) // side for pixels in size)
        ids += ([IMG] * columns + [IMG_BREAK]) * rows
        ids[-1] = IMG_END
        ids += characters(text)
    ids.append(end)
    with torch.no_grad():
        found = pixtral.build(kind).generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            pixel_values=images["pixel_values"],
            image_sizes=images["image_sizes"],
            max_new_tokens=N_TOKENS,
            do_sample=False,
        )
    tokens: list[int] = found[0, len(ids) :].tolist()
    return [len(ids), *tokens]


def chat(server: LiveServer, data: Sequence[str], **more: str | bool) -> Json:
    images = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{each}"}} for each in data]
    a, b, c = ({"type": "text", "text": text} for text in "abc")
    content = [a, images[0], b, images[1], c]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": N_TOKENS, "return_token_ids": True}
    return posted(server, "/v1/chat/completions", {**body, **more})


def responses(server: LiveServer, data: Sequence[str]) -> Json:
    images = [{"type": "input_image", "image_url": f"data:image/png;base64,{each}"} for each in data]
    a, b, c = ({"type": "input_text", "text": text} for text in "abc")
    content = [a, images[0], b, images[1], c]
    return posted(
        server, "/v1/responses", {"input": [{"role": "user", "content": content}], "max_output_tokens": N_TOKENS}
    )


def messages(server: LiveServer, data: Sequence[str]) -> Json:
    sources = [{"type": "base64", "media_type": "image/png", "data": each} for each in data]
    images = [{"type": "image", "source": source} for source in sources]
    a, b, c = ({"type": "text", "text": text} for text in "abc")
    content = [a, images[0], b, images[1], c]
    return posted(server, "/v1/messages", {"messages": [{"role": "user", "content": content}], "max_tokens": N_TOKENS})


def posted(server: LiveServer, path: str, body: Json) -> Json:
    response = server.http.post(path, json={**body, "temperature": 0})
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def save_adapter(kind: str, directory: Path) -> dict[str, torch.Tensor]:
    """Write an adapter of the text model, as PEFT does; return what it adds to each weight."""
    weights = {name: item for name, item in pixtral.build(kind).state_dict().items() if "language_model" in name}
    return save_peft(directory, weights, ATTENTION, lora_alpha=64)


@contextmanager
def merged(kind: str, changes: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """The model of transformers with these changes, inside the context."""
    model = pixtral.build(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict({name: before[name] + change for name, change in changes.items()}, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(before)


SAVED = [("mistral3", pixtral.save_hf), ("llava", pixtral.save_native), ("mistral3", pixtral.save_gguf)]


@pytest.fixture(scope="module", params=SAVED)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, LiveServer]]:
    kind: str
    save: Callable[[str, Path], Path]
    kind, save = request.param
    directory = tmp_path_factory.mktemp(kind)
    model = save(kind, directory)
    save_adapter(kind, directory / "adapter")
    make_key(directory / "key.pem")
    more = ("--lora", f"tuned={directory / 'adapter'}", "--receipt-key", str(directory / "key.pem"))
    with serving(str(model), "--quantize", "none", "--dtype", "float32", *more) as server:
        yield kind, server


def test_all_apis_answer_as_transformers_does(served: tuple[str, LiveServer]) -> None:
    kind, server = served
    data = [*map(data_of, IMAGES)]
    n_prompt, *tokens = expected(kind)
    whole = chat(server, data)
    assert whole["choices"][0]["token_ids"] == tokens
    text = whole["choices"][0]["message"]["content"]
    assert whole["usage"]["prompt_tokens"] == n_prompt
    assert whole["usage"]["prompt_tokens_details"]["image_tokens"] == n_prompt - 6  # <s>[INST]a..b..c[/INST]
    response = responses(server, data)
    assert response["output"][0]["content"][0]["text"] == text
    message = messages(server, data)
    assert message["content"][0]["text"] == text
    assert message["usage"]["cache_read_input_tokens"] > 0, "the images are the same: their pages are reused"
    other = chat(server, [data[0], data_of(photograph(170, 300, 3))])
    assert other["usage"]["prompt_tokens"] == n_prompt
    assert other["choices"][0]["token_ids"] != tokens


def test_images_continue(served: tuple[str, LiveServer]) -> None:
    """The second prompt is that of the whole conversation: its images come from the store."""
    _, server = served
    whole = responses(server, [*map(data_of, IMAGES)])
    more: Json = {"input": "d", "max_output_tokens": N_TOKENS}
    after = posted(server, "/v1/responses", more | {"previous_response_id": whole["id"]})
    items = server.http.get(f"/v1/responses/{whole['id']}/input_items").json()["data"]
    again = [*items, *whole["output"], {"role": "user", "content": "d"}]
    plain = posted(server, "/v1/responses", more | {"input": again, "store": False})
    assert after["output"][0]["content"][0]["text"] == plain["output"][0]["content"][0]["text"]
    for response in (after, plain):
        n_images = response["usage"]["input_tokens_details"]["image_tokens"]
        assert n_images == whole["usage"]["input_tokens_details"]["image_tokens"] > 0
    assert after["usage"]["input_tokens_details"]["cached_tokens"] > n_images, "the conversation is reused"
    other = posted(server, "/v1/responses", {"input": "d", "max_output_tokens": N_TOKENS})
    assert other["output"][0]["content"][0]["text"] != after["output"][0]["content"][0]["text"]


def test_a_receipt_names_images_and_adapter(served: tuple[str, LiveServer], tmp_path: Path) -> None:
    """In float32 nothing is promised; alone on one machine the answer is the same."""
    _, server = served
    data = [*map(data_of, IMAGES)]
    answer = chat(server, data, model="tuned", receipt="full")
    (receipt,) = answer["receipts"]
    assert (len({*receipt["images"]}), receipt["adapter"]["name"]) == (2, "tuned")
    path, request = tmp_path / "answer.json", tmp_path / "request.json"
    path.write_text(json.dumps(answer))
    done = noria("verify", path, "--url", server.url)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "equal bits: not promised: " in done.stdout
    assert done.stdout.endswith(f"equal: {receipt['n_tokens']} tokens, computed again\n")
    request.write_text(receipt["content"]["body"].replace(data[0], data_of(photograph(100, 60, 3))))
    done = noria("verify", path, "--request", request, "--url", server.url)
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "images: the images are others" in done.stdout


def test_images_with_an_adapter_are_as_in_transformers_with_merged_weights(
    served: tuple[str, LiveServer], tmp_path: Path
) -> None:
    kind, server = served
    data = [*map(data_of, IMAGES)]
    _, *base = expected(kind)
    with merged(kind, save_adapter(kind, tmp_path)):
        _, *tokens = expected(kind)
    assert tokens != base
    for model, wanted in (("tuned", tokens), (None, base), ("tuned", tokens)):
        answer = chat(server, data, **({"model": model} if model else {}))
        assert answer["choices"][0]["token_ids"] == wanted


def test_images_and_an_adapter_come_from_the_disk(tmp_path: Path) -> None:
    """After a restart, with the same bits, as far as whole pages go. Another image and the base model are computed."""
    directory = pixtral.save_hf("mistral3", tmp_path / "model")
    save_adapter("mistral3", directory / "adapter")
    store = ("--prefix-store", str(tmp_path / "pages"))
    flags = ("--quantize", "int8", "--lora", f"tuned={directory / 'adapter'}", *store)
    data = [*map(data_of, IMAGES)]

    def asked(server: LiveServer, data: Sequence[str], **more: str | bool) -> tuple[Json, int]:
        answer = chat(server, data, logprobs=True, **more)
        return answer["choices"][0], answer["timings"]["cache_disk_n"]

    with serving(str(directory), *flags) as server:
        computed, from_disk = asked(server, data, model="tuned")
        assert from_disk == 0
    with serving(str(directory), *flags) as server:
        others = [data[0], data_of(photograph(170, 300, 3))]
        _, of_another = asked(server, others, model="tuned")
        assert asked(server, data)[1] == 0
        again, from_disk = asked(server, data, model="tuned")
        assert again == computed
        assert from_disk > of_another
        assert asked(server, data, model="tuned") == (computed, 0), "from memory"


def test_ranks_that_share_a_model_answer_as_transformers_does(tmp_path: Path) -> None:
    """The ranks of the first stage encode images, those of the second get no pixels."""
    flags = ("--quantize", "none", "--dtype", "float32", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")
    with serving(str(pixtral.save_hf("mistral3", tmp_path)), *flags) as server:
        _, *tokens = expected("mistral3")
        assert chat(server, [*map(data_of, IMAGES)])["choices"][0]["token_ids"] == tokens
