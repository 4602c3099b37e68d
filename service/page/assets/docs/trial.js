// A form that sends one request and shows what the server answers, streams too.

import { element } from "../dom.js";

const MOST_SHOWN = 200_000; // characters of an answer; an endless stream must not fill the tab

export class Trial {
  #abort = null;

  constructor({ server, method, path, operation, body }) {
    Object.assign(this, { server, method, path });
    const id = operation.operationId;
    this.parameters = (operation.parameters ?? [])
      .filter((parameter) => parameter.in === "path")
      .map(({ name }) => [name, element("input", { id: `${id}-${name}`, autocomplete: "off", required: true })]);
    this.input = body && element("textarea", { id: `${id}-body`, class: "mono", spellcheck: "false", rows: "6" });
    if (body) this.input.value = JSON.stringify(body.example ?? {}, null, 2);
    this.button = element("button", { type: "submit", class: "main" }, "Send");
    this.status = element("p", { role: "status", class: "faint" });
    this.answer = element("pre", { tabindex: "0", role: "region", "aria-label": `Answer of ${path}`, hidden: true });
    this.box = element(
      "form",
      { class: "trial", onsubmit: (event) => this.#submit(event) },
      this.parameters.map(([name, input]) => [element("label", { for: input.id }, name), input]).flat(),
      this.input && [element("label", { for: this.input.id }, "Body, as JSON"), this.input],
      element("div", { class: "send" }, this.button, this.status),
      this.answer,
    );
  }

  async #submit(event) {
    event.preventDefault();
    if (this.#abort) return this.#abort.abort();
    const body = this.#body();
    if (body === undefined) return;
    this.#abort = new AbortController();
    this.button.textContent = "Stop";
    this.status.textContent = "Sent…";
    try {
      await this.#send(body, this.#abort.signal);
    } catch (error) {
      this.status.textContent += error.name === "AbortError" ? " Stopped." : " The connection broke.";
    } finally {
      this.#abort = null;
      this.button.textContent = "Send";
    }
  }

  /** The body to send, null where the request has none, undefined where it is no JSON. */
  #body() {
    if (!this.input) return null;
    try {
      JSON.parse(this.input.value);
      return this.input.value;
    } catch (error) {
      this.status.textContent = `The body is no JSON: ${error.message}`;
      this.input.focus();
    }
  }

  /** As a client would: errors are answers like others here, so they are shown and not handled. */
  async #send(body, signal) {
    const path = this.parameters.reduce(
      (path, [name, { value }]) => path.replace(`{${name}}`, encodeURIComponent(value)),
      this.path,
    );
    const headers = {};
    if (this.server.key) headers.authorization = `Bearer ${this.server.key}`;
    if (body !== null) headers["content-type"] = "application/json";
    const response = await fetch(this.server.url(path.slice(1)), {
      method: this.method.toUpperCase(),
      headers,
      body,
      signal,
    });
    const id = response.headers.get("x-request-id");
    this.status.textContent = `Status ${response.status}${id ? `, request ${id}` : ""}.`;
    this.answer.hidden = false;
    this.answer.textContent = "";
    await this.#show(response);
  }

  async #show(response) {
    if (response.headers.get("content-type")?.startsWith("application/json")) {
      const text = await response.text();
      this.answer.textContent = JSON.stringify(JSON.parse(text), null, 2).slice(0, MOST_SHOWN);
      return;
    }
    let shown = 0;
    for await (const text of pieces(response)) {
      if (shown < MOST_SHOWN) this.answer.append(text.slice(0, MOST_SHOWN - shown));
      shown += text.length;
    }
  }
}

async function* pieces(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    yield value;
  }
}
