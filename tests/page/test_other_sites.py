"""Pages of other sites in a real browser: by a name that points here, and by requests to this server's own address."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect

from tests.page.chat import answers, ask
from tests.service.live import Live, answer, running
from tests.waiting import eventually

SAME_ORIGIN = """async () => {
  const body = JSON.stringify({ prompt: "hi", max_tokens: 1 });
  const json = { method: "POST", headers: { "content-type": "application/json" }, body };
  const tries = [["/v1/models"], ["/metrics"], ["/v1/engine/events"], ["/live"], ["/docs"], ["/page/app.js"],
    ["/v1/completions", json], ["/v1/unload_lora_adapter", json], ["/v1/requests/one", { method: "DELETE" }]];
  return Promise.all(tries.map(async ([path, options]) => (await fetch(path, options)).status));
}"""
"""What a page may try whose name points at the server: it has the server's origin and reads every answer."""
OTHER_ORIGIN = """async (url) => {
  const ended = (made, ...names) => new Promise((done) =>
    names.forEach((name) => made.addEventListener(name, () => done(name))));
  const add = (tag, fields) => {
    const made = Object.assign(document.createElement(tag), fields);
    document.body.append(made);
    return made;
  };
  const blind = { mode: "no-cors" };
  const body = JSON.stringify({ prompt: "hi", max_tokens: 1 });
  const tries = [
    fetch(`${url}/v1/models`).catch(() => "not readable"),
    fetch(`${url}/metrics`, blind),
    fetch(`${url}/v1/completions`, { ...blind, method: "POST", body }),
    fetch(`${url}/v1/completions`, { ...blind, method: "POST", body: new Blob([body]) }),
    ended(add("img", { src: `${url}/v1/requests/one` }), "load", "error"),
    ended(add("script", { src: `${url}/page/app.js` }), "load", "error"),
    ended(new EventSource(`${url}/v1/engine/events`), "open", "error"),
    ended(add("iframe", { src: `${url}/version` }), "load"),
  ];
  const frame = add("iframe", { name: "hidden" });
  const form = add("form", { action: `${url}/v1/unload_lora_adapter`, method: "POST", target: "hidden" });
  form.enctype = "text/plain";
  form.append(Object.assign(document.createElement("input"), { name: '{"name": "', value: 'an-adapter"}' }));
  tries.push(ended(frame, "load"));
  form.submit();
  await Promise.all(tries);
  return tries.length;
}"""
"""All that a page can send to another origin without its leave. Returns how much it sent."""


class Empty(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The requests of the test are not logged."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of another server of this machine, with an empty page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def refused(live: Live) -> int:
    """The number of requests with a 403. All others were those of this test."""
    counts: dict[str, float] = {}
    for line in live.http.get("/metrics").text.splitlines():
        if line.startswith("noria_http_requests_total{"):
            labels, value = line.split("} ")
            counts[labels] = float(value)
    others = [labels for labels, n in counts.items() if n and 'status="403"' not in labels]
    assert all('"/ready"' in labels or '"/metrics"' in labels for labels in others), others
    return int(sum(n for labels, n in counts.items() if 'status="403"' in labels))


def test_a_name_that_points_here_reaches_nothing(page: Page) -> None:
    with running() as live:
        opened = page.goto(f"http://rebound.example:{live.address[1]}/")
        assert opened is not None
        assert opened.status == 403
        expect(page.locator("body")).to_contain_text("--allowed-hosts")
        assert set(page.evaluate(SAME_ORIGIN)) == {403}
        assert refused(live) >= 10  # and its icon


@pytest.mark.parametrize("name", ["evil.example", "localhost"])
def test_a_page_of_another_origin_reaches_nothing(page: Page, port: int, name: str) -> None:
    """`localhost` is the server's own site, and another origin by its port."""
    with running() as live:
        page.goto(f"http://{name}:{port}/")
        sent = page.evaluate(OTHER_ORIGIN, live.url)
        eventually(lambda: refused(live) == sent, "each request is refused")


def test_a_link_of_another_site_opens_the_page(reciting: Live, page: Page, port: int) -> None:
    page.goto(f"http://evil.example:{port}/")
    page.evaluate("(url) => { location.href = url; }", f"{reciting.url}/")
    ask(page, "by a link")
    expect(answers(page)).to_have_text("by a link")


def test_an_origin_of_the_flag_may_call(page: Page, port: int) -> None:
    origin = f"http://app.example:{port}"
    with running(cors_origins=(origin,)) as live:
        page.goto(origin)
        call = """async (url) => {
          const body = JSON.stringify({ prompt: "hi", max_tokens: 3 });
          const headers = { "content-type": "application/json" };
          const response = await fetch(`${url}/v1/completions`, { method: "POST", headers, body });
          return (await response.json()).choices[0].text;
        }"""
        assert page.evaluate(call, live.url) == answer("hi", 3)
