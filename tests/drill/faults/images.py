"""The process that decodes images: its death, and images that are made to break it."""

import base64
import json
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

from tests.drill.attacks.bodies import SLOWLY, slow_uploads
from tests.drill.canary import CHAT, Answer, Question, ask
from tests.drill.processes import send
from tests.drill.row import SERVES_SECONDS, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.target import Target
from tests.model.images.files import END, header, noise, progressive, saved, texts

IMAGE_SECONDS = {signal.SIGKILL: 8.0, signal.SIGSEGV: 8.0, signal.SIGSTOP: 8.0}
BOMB_SECONDS = 25.0
SEEDS = count(time.time_ns() % 10**9)


def image(data: bytes) -> Question:
    """A chat request with this file as an image."""
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return Question(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0})


def serves_new_image(target: Target, within: float) -> str:
    """Check that an image that the server has never seen is answered in time."""
    answer = ask(target.url, image(saved(noise(100, 60, seed=next(SEEDS)))), headers=target.headers)
    check(answer.status == 200, f"a good image got {answer.status or 'no answer'} {answer.text[:160]}")
    check(answer.seconds <= within, f"a new image took {answer.seconds:.1f} s")
    return f"a new image took {answer.seconds:.1f} s"


def strike(number: signal.Signals, stage: Stage) -> str:
    """Send a signal to the process while it works on an image that takes long."""
    serves_new_image(stage.target, BOMB_SECONDS)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, stage.target.url, image(progressive(2000, 3000 + next(SEEDS) % 1000)))
        time.sleep(0.1)
        send(stage.target.find("image decoder").pid, number)
        seen = serves_new_image(stage.target, IMAGE_SECONDS[number])
        check(slow.result().status in (200, 400), f"the image in it got {slow.result().status or 'no answer'}")
    return seen


def bombs() -> Sequence[bytes]:
    """Files that want too much memory, time and pixels, as no server has seen them."""
    scans = 60_000 + next(SEEDS) % 1000
    return [texts() + b"%d" % scans, progressive(1000, scans), progressive(5784, 6000), header(50_000, 50_000) + END]


def explode(stage: Stage) -> str:
    """Send all bombs twice, and good images meanwhile."""
    seen = [_explode(stage, made) for made in [bombs()] * 2]
    return "; again: ".join(seen)


def _explode(stage: Stage, made: Sequence[bytes]) -> str:
    with ThreadPoolExecutor(len(made)) as pool:
        asked = [pool.submit(ask, stage.target.url, image(data)) for data in made]
        seen = serves_new_image(stage.target, BOMB_SECONDS)
        answers: list[Answer] = [answer.result() for answer in asked]
    statuses = [answer.status for answer in answers]
    check(set(statuses) <= {200, 400}, f"the bombs got {statuses}")
    return f"{seen}, the bombs {max(answer.seconds for answer in answers):.1f} s"


def large_image() -> tuple[str, bytes]:
    """The path and the body of a request with an image of about a megabyte."""
    question = image(saved(noise(600, 500, seed=next(SEEDS))))
    return question.path, json.dumps(question.body).encode()


def death(number: signal.Signals, askers: int) -> Row:
    when = "at rest" if askers == 1 else "under load"
    own = f"a new image is answered within {IMAGE_SECONDS[number]:g} s"
    fault = f"{number.name} of the image decoder, {when}"
    return Row(fault, Promise(own, serves=SERVES_SECONDS), partial(strike, number), "images", askers)


ROWS: tuple[Row, ...] = (
    *(death(number, askers) for number in IMAGE_SECONDS for askers in (1, 6)),
    Row(
        "images that want too much time, memory or pixels",
        Promise(f"200 or 400; a new image within {BOMB_SECONDS:g} s", answers=BOMB_SECONDS),
        explode,
        "images",
    ),
    Row("20 slow uploads beside images", SLOWLY, partial(slow_uploads, large_image), "images"),
)
