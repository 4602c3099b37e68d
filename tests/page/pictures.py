"""Pictures of an engine, as `/v1/engine/events` sends them, pushed into the page by the test."""

import json
from typing import Any

from playwright.sync_api import Page

from tests.waiting import eventually

STAND_IN = """
window.feeds = [];
const plain = window.fetch;
window.fetch = (address, options = {}) => {
  if (!String(address).includes("v1/engine/events")) return plain(address, options);
  let feed;
  const body = new ReadableStream({
    start(controller) {
      const push = (text) => controller.enqueue(new TextEncoder().encode(text));
      feed = { open: true, push, end: () => controller.close() };
      window.feeds.push(feed);
      options.signal?.addEventListener("abort", () => {
        feed.open = false;
        controller.error(new DOMException("aborted", "AbortError"));
      });
    },
  });
  return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
};
"""
"""Feeds that the test writes, in place of the server's."""


def stand_in(page: Page) -> None:
    """Give the page feeds that `push` fills. Before the page is loaded."""
    page.add_init_script(STAND_IN)


def holds(page: Page, expression: str) -> None:
    """Wait until a JavaScript expression is true. `wait_for_function` would evaluate in the page, which forbids it."""
    eventually(lambda: page.evaluate(expression), expression)


def push(page: Page, picture: dict[str, Any]) -> None:
    """Send the picture on the newest feed, once there is one."""
    holds(page, "window.feeds.length > 0 && window.feeds.at(-1).open")
    page.evaluate("text => window.feeds.at(-1).push(text)", f"event: engine\ndata: {json.dumps(picture)}\n\n")


def table(held: int, *, start: int = 0, first: int = 0, shared: int = 0) -> dict[str, Any]:
    """A sequence's pages: `held` of them from block `first` on; the first `shared` of the listed ones are shared."""
    ids = list(range(start, start + held))[-64:]
    return {"first": first, "held": held, "ids": ids, "shared": list(range(shared))}


def sequence(id: int, state: str = "decode", **fields: Any) -> dict[str, Any]:
    plain = {"prompt": 40, "computed": 50, "generated": 10, "cached": 0, "reason": None, "pages": [table(4)]}
    return {"id": id, "state": state, **plain, **fields}


def picture(time: float = 1000.0, **fields: Any) -> dict[str, Any]:
    """A picture of a calm engine with one pool of 512 pages."""
    sequences = fields.get("sequences", [])
    return {
        "time": time,
        "state": "ready",
        "running": sum(item["state"] in ("prompt", "decode") for item in sequences),
        "waiting": sum(item["state"] in ("waiting", "preempted") for item in sequences),
        "tokens_per_second": 0.0,
        "prompt_tokens_per_second": 0.0,
        "ttft_seconds": None,
        "queue_seconds": None,
        "preemptions": 0,
        "prefix": {"queried": 0, "hit": 0, "disk": 0},
        "drafts": {"proposed": 0, "accepted": 0, "drafters": []},
        "pools": [{"window": None, "page_size": 16, "pages": 512, "held": 0, "shared": 0, "cached": 0, "free": 512}],
        "steps": [],
        "sequences": [],
        "left_out": 0,
        **fields,
    }
