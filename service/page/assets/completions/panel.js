// The parameters of a completion, with the ranges of the server.

import { element } from "../dom.js";
import { rangeOf, readFields, valueOf } from "../fields.js";

const NAMES = [
  "max_tokens",
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "seed",
  "stop",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
  "min_tokens",
  "prompt_lookup_num_tokens",
];
const FIRST = { max_tokens: "64" }; // the API's own default, 16, is little to read

/** Inputs for the fields. An empty input keeps the default, and is not sent. */
export class Panel {
  box = element("div", { class: "panel" });
  #rows = [];

  async fill(server, card) {
    const fields = await readFields(server, "/v1/completions", NAMES, card);
    const before = new Map(this.#rows.map(({ field, input }) => [field.name, input.value]));
    this.#rows = fields.map((field) => makeRow(field, card.defaults?.[field.name]));
    for (const { field, input } of this.#rows) input.value = before.get(field.name) ?? input.value;
    this.box.replaceChildren(...this.#rows.map(({ box }) => box));
  }

  /** {name: value} of what is filled in; null after it has shown what is wrong. */
  get values() {
    const values = {};
    let wrong = null;
    for (const { field, input, error } of this.#rows) {
      error.textContent = "";
      try {
        if (input.value.trim()) values[field.name] = valueOf(field, input.value);
      } catch (failure) {
        error.textContent = failure.message;
        wrong ??= input;
      }
      input.setAttribute("aria-invalid", String(Boolean(error.textContent)));
    }
    wrong?.focus();
    return wrong ? null : values;
  }
}

function makeRow(field, kept) {
  const id = `completion-${field.name}`;
  const about =
    field.about.replaceAll("`", "") + (field.kind === "strings" ? " Here: one a line; \\n is a line break." : "");
  const attributes = {
    id,
    autocomplete: "off",
    "aria-describedby": `${id}-about ${id}-error`,
    placeholder: kept === undefined ? "default" : `${kept} (the model's)`,
  };
  const input =
    field.kind === "strings" ? element("textarea", { ...attributes, rows: "2" }) : element("input", attributes);
  input.value = FIRST[field.name] ?? "";
  const error = element("p", { class: "error", id: `${id}-error`, role: "alert" });
  const box = element(
    "div",
    { class: "row" },
    element("label", { for: id }, field.name, element("span", { class: "faint" }, ` ${rangeOf(field)}`)),
    input,
    error,
    element("p", { class: "faint", id: `${id}-about` }, about),
  );
  return { field, input, error, box };
}
