"""An image that one rank cannot encode, over HTTP: only its request ends, whoever else is served."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from PIL import Image

from tests.e2e.server import LiveServer, serving
from tests.model import pixtral

FAULTY_RANK_1 = """
import sys
from pathlib import Path

if "service.engine" in sys.orig_argv:  # rank 1 is forked from this process
    from model.network.vision.encoder import ImageEncoder

    begin = ImageEncoder.begin

    def begin_unless_red(self, inputs, *size):
        if set(inputs[::3]) == {255} and Path("/proc/self/comm").read_text().strip() == "noria-rank-1":
            raise MemoryError("red")
        return begin(self, inputs, *size)

    ImageEncoder.begin = begin_unless_red
"""


def ask(server: LiveServer, color: tuple[int, int, int]) -> httpx.Response:
    file = io.BytesIO()
    Image.new("RGB", (56, 56), color).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    content = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    return server.http.post("/v1/chat/completions", json=body)


def test_an_image_that_one_rank_cannot_encode(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULTY_RANK_1)
    model = pixtral.save_native("mistral3", tmp_path / "model")
    with serving(str(model), "--tensor-parallel-size", "2", PYTHONPATH=str(tmp_path)) as server:
        alone = ask(server, (0, 80, 0)).json()["choices"]
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda n: ask(server, (255, n, 0) if n % 2 else (0, 80, 0)), range(6)))
        assert [answer.json()["choices"] for answer in answers[::2]] == [alone] * 3
        for answer in answers[1::2]:
            assert answer.status_code == 500
            assert "could not encode an image or audio of this request" in answer.json()["error"]["message"]
        assert server.metric("noria_engine_restarts_total") == 0
