"""The process that decodes images: its death, and images that are made to break it."""

import base64
import json
from collections.abc import Sequence
from functools import partial

from tests.drill.attacks.bodies import SLOWLY, slow_uploads
from tests.drill.canary import CHAT, Question
from tests.drill.explained import NOTHING
from tests.drill.faults.media import SEEDS, Medium
from tests.drill.row import Row
from tests.model.images.files import END, header, noise, progressive, saved, texts


def image(data: bytes) -> Question:
    """A chat request with this file as an image."""
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return Question(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0})


def good() -> Question:
    return image(saved(noise(100, 60, seed=next(SEEDS))))


def slow() -> Question:
    return image(progressive(2000, 3000 + next(SEEDS) % 1000))


def bombs() -> Sequence[Question]:
    """Files that want too much memory, time and pixels."""
    scans = 60_000 + next(SEEDS) % 1000
    made = [texts() + b"%d" % scans, progressive(1000, scans), progressive(5784, 6000), header(50_000, 50_000) + END]
    return [image(data) for data in made]


def large_image() -> tuple[str, bytes]:
    """The path and the body of a request with an image of about a megabyte."""
    question = image(saved(noise(600, 500, seed=next(SEEDS))))
    return question.path, json.dumps(question.body).encode()


IMAGES = Medium(
    "image", "images", "image decoder", good, slow, bombs, "images that want too much time, memory or pixels"
)
ROWS: tuple[Row, ...] = (
    *IMAGES.rows(),
    Row("20 slow uploads beside images", SLOWLY, partial(slow_uploads, large_image), "images", cause=NOTHING),
)
