// A form that sends one request and shows what the server answers, streams too.

import { Component, createRef, html } from "../html.js";

const MOST_SHOWN = 200_000; // characters of an answer; an endless stream must not fill the tab

export class Trial extends Component {
  abort = null;
  input = createRef();
  state = { status: "", answer: null };

  submit = async (event) => {
    event.preventDefault();
    if (this.abort) return this.abort.abort();
    const form = new FormData(event.currentTarget);
    const body = this.body();
    if (body === undefined) return;
    this.abort = new AbortController();
    this.setState({ status: "Sent…" });
    try {
      await this.send(form, body, this.abort.signal);
    } catch (error) {
      const end = error.name === "AbortError" ? " Stopped." : " The connection broke.";
      this.setState(({ status }) => ({ status: status + end }));
    } finally {
      this.abort = null;
      this.forceUpdate();
    }
  };

  /** The body to send, null where the request has none, undefined where it is no JSON. */
  body() {
    const { current: input } = this.input;
    if (!input) return null;
    try {
      JSON.parse(input.value);
      return input.value;
    } catch (error) {
      this.setState({ status: `The body is no JSON: ${error.message}` });
      input.focus();
    }
  }

  /** As a client would: errors are answers like others here, so they are displayed and not handled. */
  async send(form, body, signal) {
    const { server, method } = this.props;
    const path = this.props.path.replace(/\{(.+?)\}/g, (_, name) => encodeURIComponent(form.get(name)));
    const headers = {};
    if (server.key) headers.authorization = `Bearer ${server.key}`;
    if (body !== null) headers["content-type"] = "application/json";
    const response = await fetch(server.url(path.slice(1)), { method: method.toUpperCase(), headers, body, signal });
    const id = response.headers.get("x-request-id");
    this.setState({ status: `Status ${response.status}${id ? `, request ${id}` : ""}.`, answer: "" });
    if (response.headers.get("content-type")?.startsWith("application/json")) {
      this.add(JSON.stringify(await response.json(), null, 2));
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) this.add(part.value);
  }

  add(text) {
    this.setState(({ answer }) => ({ answer: (answer + text).slice(0, MOST_SHOWN) }));
  }

  render({ path, operation, example }, { status, answer }) {
    const id = operation.operationId;
    const named = (operation.parameters ?? []).filter((parameter) => parameter.in === "path");
    return html`<form class="trial" onsubmit=${this.submit}>
      ${named.map(
        ({ name }) => html`<label for="${id}-${name}">${name}</label>
          <input id="${id}-${name}" name=${name} autocomplete="off" required />`,
      )}
      ${
        example &&
        html`<label for="${id}-body">Body, as JSON</label>
          <textarea id="${id}-body" class="mono" spellcheck=${false} rows="6" ref=${this.input}
            defaultValue=${JSON.stringify(example, null, 2)}></textarea>`
      }
      <div class="send">
        <button type="submit" class="main">${this.abort ? "Stop" : "Send"}</button>
        <p role="status" class="faint">${status}</p>
      </div>
      <pre tabindex="0" role="region" aria-label="Answer of ${path}" hidden=${answer === null}>${answer}</pre>
    </form>`;
  }
}
