// Completions: a text that the model continues.

import { asCurl, asPython, COMPLETIONS } from "../code.js";
import { copyButton } from "../copy.js";
import { element } from "../dom.js";
import { isGone } from "../model.js";
import { COLOURS, Tokens } from "../tokens.js";
import { Panel } from "./panel.js";
import { bodyOf, run, summary } from "./run.js";

const STORED = "noria-completion-text"; // of this tab: a reload keeps the text
const EXAMPLE = "Once upon a time, a miller built a water wheel";

/** Fill `root`. `context` has `server` (server.js) and `model` (model.js). */
export function mount(root, { server, model }) {
  const view = new Completions(root, server, model);
  return { shown: () => view.text.focus(), hidden() {} };
}

class Completions {
  #abort = null;
  #undo = []; // texts before the answers, newest last

  constructor(root, server, model) {
    Object.assign(this, { server, model, card: null });
    this.panel = new Panel();
    this.text = element("textarea", { id: "completion-text", class: "mono", spellcheck: "false", dir: "auto" });
    this.text.value = sessionStorage.getItem(STORED) ?? EXAMPLE;
    this.scores = check("completion-scores", "Probabilities of tokens");
    this.echo = check("completion-echo", "of the prompt too");
    this.go = element(
      "button",
      { type: "button", class: "main", title: "Ctrl-Enter", onclick: () => this.toggle() },
      "Continue",
    );
    this.back = element("button", { type: "button", disabled: true, onclick: () => this.undo() }, "Undo");
    this.status = element("p", { role: "status", class: "faint" });
    this.shown = element("div");
    this.build(root);
    this.listen(root);
    model.follow((card) => this.know(card));
  }

  build(root) {
    const code = (write) => () => write(this.server, COMPLETIONS, this.body() ?? {});
    root.append(
      element(
        "div",
        { class: "completions" },
        element(
          "div",
          { class: "writing" },
          element("label", { for: "completion-text" }, "Text"),
          this.text,
          element(
            "div",
            { class: "deeds" },
            this.go,
            this.back,
            this.scores.box,
            this.echo.box,
            element(
              "span",
              { class: "copies" },
              copyButton("Copy as curl", code(asCurl)),
              copyButton("Copy as Python", code(asPython)),
            ),
          ),
          this.status,
          this.shown,
        ),
        element(
          "section",
          { class: "panel-box", "aria-label": "Parameters" },
          element("h2", {}, "Parameters"),
          element("p", { class: "faint" }, "An empty field keeps its default. Only filled fields are sent."),
          this.panel.box,
        ),
      ),
    );
  }

  listen(root) {
    root.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.toggle();
      if (event.key === "Escape") this.#abort?.abort();
    });
    this.text.addEventListener("input", () => this.keep());
    this.echo.input.addEventListener("change", () => (this.scores.input.checked ||= this.echo.input.checked));
    this.scores.input.addEventListener("change", () => (this.echo.input.checked &&= this.scores.input.checked));
  }

  async know(card) {
    this.card = card;
    await this.panel.fill(this.server, this.card);
  }

  /** The request for the text as it is; null if a parameter is wrong. */
  body() {
    const values = this.panel.values;
    const options = { scores: this.scores.input.checked, echo: this.echo.input.checked };
    return values && bodyOf(this.card?.id, this.text.value, values, options);
  }

  async toggle() {
    if (this.#abort) return this.#abort.abort();
    if (!this.card) return this.say("The model is not ready yet.");
    const body = this.body();
    if (!body) return;
    if (!body.prompt) return this.say("Write a text first.");
    this.begin();
    try {
      await this.ask(body, this.#abort.signal);
    } catch (error) {
      this.say(error.name === "AbortError" ? "Stopped." : error.message);
    }
    this.end();
  }

  begin() {
    this.#abort = new AbortController();
    this.#undo.push(this.text.value);
    this.text.readOnly = true;
    this.go.textContent = "Stop";
    this.back.disabled = true;
    this.shown.replaceChildren();
    this.say("The model reads the prompt…");
  }

  /** Ask the model of the server. After a restart that is another one. */
  async ask(body, signal) {
    try {
      await this.follow(body, signal);
    } catch (error) {
      if (!isGone(error)) throw error;
      const { id } = await this.model.renewed();
      await this.follow({ ...body, model: id }, signal);
    }
  }

  async follow(body, signal) {
    const answer = {};
    const tokens = new Tokens();
    for await (const { text = "", scores = [], finish, waited, ...counts } of run(this.server, body, signal)) {
      if (answer.waited === undefined && waited !== undefined) this.say("The model writes…");
      Object.assign(answer, counts, { finish: finish ?? answer.finish, waited: answer.waited ?? waited });
      this.append(text);
      if (scores.length) {
        if (!tokens.scores.length) this.shown.append(element("p", { class: "faint" }, COLOURS), tokens.root);
        tokens.show([...tokens.scores, ...scores]);
      }
    }
    this.say(summary(answer));
  }

  /** Add to the text. It scrolls along unless the person has scrolled up. */
  append(text) {
    const atEnd = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 40;
    this.text.value += text;
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
  }

  end() {
    this.#abort = null;
    if (this.#undo.at(-1) === this.text.value) this.#undo.pop();
    this.text.readOnly = false;
    this.go.textContent = "Continue";
    this.back.disabled = !this.#undo.length;
    this.keep();
  }

  undo() {
    this.text.value = this.#undo.pop();
    this.back.disabled = !this.#undo.length;
    this.shown.replaceChildren();
    this.say("The last answer is gone.");
    this.keep();
    if (this.back.disabled) this.text.focus();
  }

  keep() {
    sessionStorage.setItem(STORED, this.text.value);
  }

  say(text) {
    this.status.textContent = text;
  }
}

function check(id, text) {
  const input = element("input", { type: "checkbox", id });
  return { input, box: element("label", { class: "check", for: id }, input, " ", text) };
}
