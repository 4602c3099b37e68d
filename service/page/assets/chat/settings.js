// The settings of a conversation: system prompt, request fields, JSON schema and tools.

import { can } from "../card.js";
import { element } from "../dom.js";
import { rangeOf, readFields, textOf, valueOf } from "../fields.js";
import { limitOf, parsed } from "./request.js";

const NAMES = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "max_tokens",
  "seed",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
  "stop",
  "min_tokens",
  "prompt_lookup_num_tokens",
  "reasoning_effort",
  "thinking_token_budget",
  "tool_choice",
  "priority",
  "timeout",
];
const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, continent: { enum: ["Africa", "America", "Asia", "Europe", "Oceania"] } },
  required: ["city", "continent"],
};
const TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];
const json = (value) => JSON.stringify(value, null, 2);

/** `changed(changes)` gets changed fields of the head. */
export class Settings {
  constructor(server, { changed, closed }) {
    Object.assign(this, { server, changed, card: null, fields: [], rows: [] });
    this.defaults = element("p", { class: "hint" });
    this.list = element("div", { class: "fields" });
    this.system = this.#text("system", "System prompt", {
      rows: "4",
      about: "What the model should know and how it should answer.",
    });
    this.schema = this.#text("schema", "JSON schema", {
      about: "The answer follows it.",
      check: [false],
      example: SCHEMA,
    });
    this.tools = this.#text("tools", "Tools", {
      about: "A JSON list of functions. You type the results of calls.",
      check: [true],
      example: TOOLS,
    });
    this.root = element(
      "aside",
      { class: "settings", "aria-label": "Settings", hidden: true, id: "chat-settings" },
      element(
        "div",
        { class: "side-bar" },
        element("h2", {}, "Settings"),
        element("button", { type: "button", onclick: closed }, "Close"),
      ),
      this.system.root,
      element("h3", {}, "Parameters"),
      this.defaults,
      this.list,
      element("h3", {}, "Form of the answer"),
      this.schema.root,
      this.tools.root,
    );
  }

  /** Show the settings of a conversation. */
  show(head) {
    this.head = head;
    for (const text of [this.system, this.schema, this.tools]) text.show();
    for (const row of this.rows) row.show();
  }

  /** The model's card is known: its defaults and abilities, and the server's ranges. */
  async know(card) {
    this.card = card;
    this.fields = await readFields(this.server, "/v1/chat/completions", NAMES, card);
    const defaults = Object.entries(card.defaults ?? {});
    const given = defaults.map(([name, value]) => `${name} ${value}`).join(", ");
    this.defaults.textContent = `${given ? `This model's defaults: ${given}. ` : ""}An empty field keeps its default.`;
    const unable = { reasoning_effort: "reasoning", thinking_token_budget: "reasoning", tool_choice: "tools" };
    const able = this.fields.filter(({ name }) => !(name in unable) || can(card, unable[name]) !== false);
    this.tools.root.hidden = can(card, "tools") === false;
    this.rows = able.map((field) => this.#row(field));
    this.list.replaceChildren(...this.rows.map((row) => row.root));
    if (this.head) this.show(this.head);
  }

  /** The first setting that is wrong, with the focus on it; null if all are right. */
  complain() {
    const wrong = [this.system, ...this.rows, this.schema, this.tools].find(({ error }) => error.textContent);
    if (!wrong) return null;
    this.root.hidden = false;
    wrong.input.focus();
    return wrong.error.textContent;
  }

  /** An input with its label, its explanation and its error. `read(text)` stores the value or throws. */
  #input({ id, label, about, input, read, write }) {
    const error = element("p", { class: "error", id: `${id}-error`, role: "alert" });
    for (const [name, value] of Object.entries({ id, "aria-describedby": `${id}-about ${id}-error` }))
      input.setAttribute(name, value);
    const hint = element("p", { class: "hint", id: `${id}-about` }, about);
    const show = () => {
      input.value = write();
      error.textContent = "";
      input.removeAttribute("aria-invalid");
    };
    input.addEventListener("input", () => {
      error.textContent = "";
      try {
        read(input.value);
      } catch (failure) {
        error.textContent = failure.message;
      }
      input.setAttribute("aria-invalid", String(Boolean(error.textContent)));
    });
    const root = element("div", { class: "field" }, element("label", { for: id }, label), input, error, hint);
    return { root, input, error, show };
  }

  #text(name, label, { rows = "3", about, check = null, example = null }) {
    const input = element("textarea", { rows, spellcheck: String(!check), class: check ? "mono" : null, dir: "auto" });
    const read = (text) => {
      if (check && text.trim()) parsed(text, label, ...check);
      this.changed({ [name]: text });
    };
    const made = this.#input({ id: `chat-${name}`, label, about, input, read, write: () => this.head[name] });
    if (!example) return made;
    const fill = () => {
      input.value = json(example);
      input.dispatchEvent(new Event("input"));
    };
    made.root.append(element("button", { type: "button", class: "quiet", onclick: fill }, `Example of ${label}`));
    return made;
  }

  #row(field) {
    const { name, kind, about } = field;
    const range = rangeOf(field);
    const kept = this.card.defaults?.[name];
    const own = name === "max_tokens" ? `${limitOf(this.card)} (this page's)` : "default";
    const placeholder = kept === undefined ? own : `${textOf(kept)} (the model's)`;
    const read = (text) => {
      const { [name]: _, ...others } = this.head.fields;
      const fields = text.trim() === "" ? others : { ...others, [name]: valueOf(field, text) };
      this.changed({ fields });
    };
    const label = element("span", {}, name, range ? element("span", { class: "range" }, ` ${range}`) : null);
    const more = kind === "strings" ? " Here: one a line; \\n is a line break." : "";
    const write = () => textOf(this.head.fields[name]);
    const input = inputFor(field, placeholder);
    return this.#input({
      id: `chat-field-${name}`,
      label,
      about: about.replaceAll("`", "") + more,
      input,
      read,
      write,
    });
  }
}

function inputFor({ kind, options, min }, placeholder) {
  if (kind === "choice") {
    return element(
      "select",
      {},
      element("option", { value: "" }, placeholder),
      ...options.map((one) => element("option", {}, one)),
    );
  }
  if (kind === "strings") return element("textarea", { rows: "2", placeholder, class: "mono" });
  // Not type="number": a browser hides the text that is no number, and it would count as "no change".
  return element("input", { inputmode: min < 0 ? "text" : "decimal", autocomplete: "off", placeholder });
}
