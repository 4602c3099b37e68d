"""The table of rules: each row finds its incident in a record, and no other row does; docs and flags agree with it."""

import re
from pathlib import Path
from typing import Any

import pytest

from scripts.trouble import anchor
from service.recording.explain import RULES, WINDOW, explain

ROOT = Path(__file__).parents[3]
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
FLAGS = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
NOW = 1_800_000_000.0
QUIET: dict[str, Any] = {
    "passed": 1.0,
    "jump": 0.0,
    "worked": 0.01,
    "stood_still": 1.0,
    "lag": 0.01,
    "draining": False,
    "store_errors": 0,
    "canary_wrong": 0,
    "refused": {},
    "mistakes": 0,
    "descriptors": 20,
    "descriptors_left": 1000,
    "pids_current": 9,
    "pids_left": 50,
    "oom_kill": 0.0,
    "host_oom_kill": 0.0,
    "memory_current": 1,
    "memory_max": 2,
    "memory_full": 0.0,
    "throttled": 0.0,
}
MODEL: dict[str, Any] = {
    "state": "ready",
    "stage": "ready",
    "progress": 1.0,
    "reason": None,
    "waits_for": None,
    "loading": 0,
    "stalled": 0.0,
    "stalled_share": 0.0,
    "step_timeout": 60.0,
    "generated": 0,
    "running": 0,
    "waiting": 0,
    "blocked": None,
    "preemptions": 0,
    "lost_tokens": 0,
    "grammar_restarts": 0,
    "pages_damaged": 0,
    "disk_errors": 0,
    "disk_error": "Success",
}


def record(later: dict[str, Any], *events: dict[str, Any], seconds: int = 20) -> dict[str, Any]:
    """A record of which the second half has other facts, and events of this moment unless they have a time."""
    model = {name: later[name] for name in later.keys() & MODEL.keys()}
    server = {name: later[name] for name in later.keys() - MODEL.keys()}
    samples = []
    for second in range(seconds):
        old = second < seconds // 2
        own = MODEL if old else MODEL | model
        sample = {"time": NOW - seconds + second, "models": {"first": MODEL, "second": own}}
        samples.append(QUIET | ({} if old else server) | sample)
    events = tuple({"time": NOW - seconds // 2, "reason": "", "model": "second", **event} for event in events)
    return {"time": NOW, "samples": samples, "events": [*events]}


def engine(reason: str, **facts: Any) -> dict[str, Any]:
    return {"kind": "engine", "reason": reason, **facts}


KILLED = engine("killed by SIGKILL")
CAUSES: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {
    "the-service-stood-still": ({"stood_still": 3.0, "passed": 3.0}, ()),
    "out-of-memory": ({"host_oom_kill": 1.0}, (KILLED,)),
    "the-clock-jumped": ({"jump": 86400.0}, ()),
    "no-descriptors": ({"descriptors_left": 0}, ({"kind": "helper", "reason": "trial"},)),
    "no-processes": ({"pids_left": 0}, (KILLED,)),
    "damaged-pages": ({"pages_damaged": 3}, (KILLED,)),
    "the-disk-of-pages": ({"disk_errors": 1, "disk_error": "No space left on device"}, ()),
    "the-store-of-responses": ({"store_errors": 1}, ()),
    "wrong-bits": ({"canary_wrong": 1}, ()),
    "the-engine-was-stopped": ({}, (engine("the engine process is stopped and has been silent for 1.1 s"),)),
    "the-engine-crashed": ({"state": "restarting"}, (engine("killed by SIGSEGV"),)),
    "no-memory-to-load": (
        {},
        (KILLED, engine("the weights need 2 GiB, this machine has 1 GiB free; choose a smaller model")),
    ),
    "the-engine-was-killed": ({"state": "restarting", "blocked": "sequences", "waiting": 9}, (KILLED,)),
    "no-progress": (
        {},
        (engine("a sequence in the engine has made no progress for 61.0 s"),),
    ),
    "the-engine-ended": ({}, (engine("exit code 1"),)),
    "the-model-cannot-be-loaded": (
        {"state": "failed", "reason": "there is no model at 'x'"},
        ({"kind": "failure", "reason": "there is no model at 'x'"},),
    ),
    "the-zygote-was-lost": ({}, ({"kind": "zygote", "reason": "killed by SIGKILL"},)),
    "a-helper-was-lost": ({}, ({"kind": "helper", "reason": "images"},)),
    "a-follower-was-lost": ({"grammar_restarts": 1}, ()),
    "a-step-failed": ({}, ({"kind": "fault", "reason": "the step was broken"},)),
    "a-request-failed-alone": ({}, ({"kind": "fault", "reason": "the numbers are not finite"},)),
    "it-drains": ({"draining": True, "waiting": 5, "blocked": "sequences"}, ()),
    "it-waits-for-memory": ({"waits_for": "memory", "state": "loading"}, ()),
    "models-take-turns": ({}, tuple({"kind": "unload", "reason": "memory", "time": NOW - at} for at in (9, 5, 1))),
    "it-loads": ({"state": "loading", "progress": 0.5, "stage": "loading weights"}, ()),
    "no-memory-is-left": ({"memory_full": 30.0, "lag": 2.0}, ()),
    "too-many-preemptions": ({"preemptions": 9, "lost_tokens": 900, "generated": 300, "waiting": 3}, ()),
    "a-sequence-stands-still": ({"stalled": 40.0, "stalled_share": 0.67, "running": 1}, ()),
    "the-processor-is-limited": ({"throttled": 20.0, "lag": 2.0}, ()),
    "the-event-loop-is-late": ({"lag": 2.0}, ()),
    "the-queue-is-full": ({"refused": {"queue_full": 7}, "waiting": 256, "blocked": "sequences"}, ()),
    "clients-above-their-limit": ({"refused": {"rate_limit_exceeded": 7}}, ()),
    "clients-send-what-is-refused": ({"mistakes": 30, "refused": {"unsupported_parameter": 30}}, ()),
    "as-many-run-as-may": ({"blocked": "sequences", "waiting": 3, "running": 64}, ()),
    "no-pages-are-free": ({"blocked": "pages", "waiting": 3, "running": 8}, ()),
    "prompts-fill-the-steps": ({"blocked": "tokens", "waiting": 3, "running": 8}, ()),
    "adapters-wait": ({"blocked": "adapters", "waiting": 3, "running": 8}, ()),
}


def test_every_row_has_a_case() -> None:
    assert [*CAUSES] == [rule.name for rule in RULES]


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_found(name: str) -> None:
    later, events = CAUSES[name]
    found = explain(record(later, *events))
    assert found.rule.name == name
    assert "{" not in found.sentence
    assert found.figures
    assert all(re.match(r"\d\d:\d\d:\d\d  \S", line) for line in found.figures)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_row_has_a_remedy_with_its_section_and_flags_that_exist(rule: Any) -> None:
    assert re.search(rf"^#+ {re.escape(rule.section)}$", OPERATIONS, re.MULTILINE), rule.section
    assert rule.sentence.endswith(".")
    assert rule.remedy.endswith(".")
    assert len(rule.figures.split()) == 3
    for flag in re.findall(r"`(--[a-z-]+)", rule.remedy):
        assert f"`{flag}`" in FLAGS, flag


def test_nothing_is_wrong_with_a_quiet_server_and_with_one_that_works() -> None:
    busy = {"running": 8, "generated": 900, "preemptions": 2, "lost_tokens": 50, "mistakes": 3, "waiting": 1}
    for later in ({}, busy, {"refused": {"rate_limit_exceeded": 1}}):
        assert explain(record(later)).sentence == "Nothing is wrong."
    assert explain({"time": NOW, "samples": [], "events": []}).rule.name == ""


def test_the_newest_incident_is_told() -> None:
    zygote = {"kind": "zygote", "reason": "exit code 0", "time": NOW - 1}
    assert explain(record({}, engine("killed by SIGSEGV", time=NOW - 15), zygote)).rule.name == "the-zygote-was-lost"
    assert explain(record({}, engine("killed by SIGSEGV", time=NOW - 2), zygote)).rule.name == "the-engine-crashed"


def test_what_is_over_is_told_as_such() -> None:
    found = explain(record({}, engine("killed by SIGSEGV", time=NOW - WINDOW - 9), seconds=WINDOW + 30))
    assert found.rule.name == ""
    assert found.sentence.startswith("Nothing is wrong now. Some minutes ago: The engine of second crashed")


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs/trouble.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"### {rule.name}\n" in page, "run python scripts/trouble.py"
        assert rule.remedy in page
        assert anchor(rule.name) == rule.name
