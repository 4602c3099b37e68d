"""promptfoo's provider for Mistral."""

import json

from tests.agents.programs import Programs
from tests.agents.proxy import Record

QUIET = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    "PROMPTFOO_DISABLE_SHARING": "1",
}


def test_an_evaluation(programs: Programs, record: Record) -> None:
    """Every request has `random_seed` and `safe_prompt`."""
    asked = {"apiBaseUrl": f"{record.url}/v1", "temperature": 0, "max_tokens": 12}
    provider = {"id": "mistral:smollm2-135m-instruct", "config": asked}
    tests = [{"vars": {"n": n}, "assert": [{"type": "javascript", "value": "output.length > 0"}]} for n in ("5", "9")]
    config = {"prompts": ["Count from one to {{n}} in words."], "providers": [provider], "tests": tests}
    (programs.work / "config.json").write_text(json.dumps(config))
    command = ["promptfoo", "eval", "-c", "config.json", "-o", "out.json", "--no-cache", "--no-write", "-j", "1"]
    programs.run(*command, MISTRAL_API_KEY="none", **QUIET)
    record.strangers.clear()  # it says, in vain, to its makers that it must send them nothing
    stats = json.loads((programs.work / "out.json").read_text())["results"]["stats"]
    assert (stats["successes"], stats["failures"], stats["errors"]) == (2, 0, 0)
    assert "random_seed" in record.exchanges[0].sent
