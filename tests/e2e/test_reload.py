"""SIGHUP at a real server: it cuts no stream."""

import signal
from pathlib import Path

from tests.e2e.server import serving
from tests.waiting import eventually


def test_sighup_reloads_and_ends_nothing(short_model: Path, tmp_path: Path) -> None:
    level = tmp_path / "level"
    level.write_text("warning")
    with serving(str(short_model), "--log-level-file", str(level), paced=True) as server:
        request = {"model": short_model.stem, "prompt": "One, two,", "max_tokens": 60, "temperature": 0}
        alone = server.openai.completions.create(**request).choices[0].text
        with server.slow():
            stream = server.openai.completions.create(**request, stream=True)
            text = next(stream).choices[0].text
            level.write_text("info")
            server.process.send_signal(signal.SIGHUP)
            eventually(lambda: "reloaded" in server.log, "the log says so")
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == alone
        assert server.http.get("/v1/models").status_code == 200
        eventually(lambda: "GET /v1/models" in server.log, "the access log is on")
