"""What the whole service does when no engine will serve any more."""

import pytest

from tests import fakes
from tests.service.live import Live, running
from tests.waiting import eventually


def ends_with(live: Live, capsys: pytest.CaptureFixture[str], line: str) -> None:
    """Wait until the server stops, with this line and an exit code for whoever runs it."""
    eventually(lambda: not live.running(), "the server stops")
    assert live.server.failed
    assert [said for said in capsys.readouterr().err.splitlines() if said.startswith("noria: ")] == [line]


def test_five_failed_loads_end_the_service(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 0.0)
    with running() as live:
        assert live.complete(prompt="a", max_tokens=1)
        monkeypatch.setattr(fakes, "create_fake", fakes.create_broken)
        live.hosts[0].kill()
        line = "noria: 5 engines in a row could not load the model; the last one: the model is broken"
        ends_with(live, capsys, line)


def test_a_supervision_that_ends_by_itself_ends_the_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(failures: int) -> float:
        raise RuntimeError("an error in the supervisor")

    monkeypatch.setattr("service.engine.supervision.supervisor.backoff", broken)
    with running() as live:
        live.hosts[0].kill()
        ends_with(live, capsys, "noria: the model cannot be served: RuntimeError: an error in the supervisor")
