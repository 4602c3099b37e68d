// The settings of a conversation: system prompt, request fields, JSON schema and tools.

import { can } from "../card.js";
import { rangeOf, textOf, valueOf } from "../fields.js";
import { html, useState } from "../html.js";
import { CHAT_ONLY, limitOf, parsed } from "./request.js";

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

/** The form of `view.head`. `fields` are the server's (fields.js), `card` is the model's. */
export function Settings({ view, fields, card, hidden }) {
  const { head } = view;
  const own = (name, text) => view.change({ [name]: text });
  const given = Object.entries(card.defaults ?? {}).map(([name, value]) => `${name} ${value}`);
  const able = ({ name }) => !(name in CHAT_ONLY) || (!head.raw && can(card, CHAT_ONLY[name]) !== false);
  return html`<aside class="settings" aria-label="Settings" hidden=${hidden} id="chat-settings" key=${head.id}>
    <div class="side-bar">
      <h2>Settings</h2>
      <button type="button" onclick=${() => view.toggle("settings", false)}>Close</button>
    </div>
    <div class="field">
      <label><input type="checkbox" checked=${head.raw} aria-describedby="chat-raw-about"
        onchange=${({ currentTarget }) => view.change({ raw: currentTarget.checked })} /> Raw completion</label>
      <p class="hint" id="chat-raw-about">The model continues the text as it is, without the chat template.</p>
    </div>
    ${
      !head.raw &&
      html`<${Field} id="chat-system" label="System prompt" text=${head.system} write=${(text) => own("system", text)}
        rows="4" about="What the model should know and how it should answer." />`
    }
    <h3>Parameters</h3>
    <p class="hint">
      ${given.length ? `This model's defaults: ${given.join(", ")}. ` : ""}An empty field keeps its default.
    </p>
    <div class="fields">
      ${fields.filter(able).map((field) => html`<${Parameter} key=${field.name} ...${{ field, card, view }} />`)}
    </div>
    ${
      !head.raw &&
      html`<h3>Structured output</h3>
        <${Field} id="chat-schema" label="JSON schema" text=${head.schema} write=${(text) => own("schema", text)}
          json=${false} example=${SCHEMA} about="The answer follows it." />
        ${
          can(card, "tools") !== false &&
          html`<${Field} id="chat-tools" label="Tools" text=${head.tools} write=${(text) => own("tools", text)}
            json=${true} example=${TOOLS} about="A JSON list of functions. You type the results of calls." />`
        }`
    }
  </aside>`;
}

/** A request field. Empty, it is not sent. */
function Parameter({ field, card, view }) {
  const { name, kind, about, options, min } = field;
  const { defaults = {} } = card;
  const own = name === "max_tokens" ? `${limitOf(card)} (this page's)` : "default";
  const write = (text) => {
    const { [name]: _, ...others } = view.head.fields;
    view.change({ fields: text.trim() === "" ? others : { ...others, [name]: valueOf(field, text) } });
  };
  const range = rangeOf(field);
  return html`<${Field} id="chat-field-${name}" label=${name} text=${textOf(view.head.fields[name])}
    range=${range} options=${options} inputmode=${min < 0 ? "text" : "decimal"} rows=${kind === "strings" ? 2 : 0}
    placeholder=${name in defaults ? `${textOf(defaults[name])} (the model's)` : own} write=${write}
    about=${about.replaceAll("`", "") + (kind === "strings" ? " Here: one a line; \\n is a line break." : "")} />`;
}

/**
 * An input with its label, its explanation and its error. `write(text)` stores the value or throws; a wrong text stays
 * in the input. `json`: whether the text is a JSON list (true) or an object (false).
 */
function Field({ id, label, range, about, text, write, json, example, options, placeholder, inputmode, rows = 3 }) {
  const [typed, type] = useState(text);
  const [error, complain] = useState("");
  const read = (value) => {
    type(value);
    try {
      if (json !== undefined && value.trim()) parsed(value, label, json);
      write(value);
      complain("");
    } catch (failure) {
      complain(failure.message);
    }
  };
  const isCode = json !== undefined || placeholder !== undefined;
  const more = {
    id,
    placeholder,
    value: typed,
    oninput: ({ currentTarget }) => read(currentTarget.value),
    "aria-describedby": `${id}-about ${id}-error`,
    "aria-invalid": Boolean(error),
  };
  return html`<div class="field">
    <label for=${id}>${label}${range && html`<span class="range"> ${range}</span>`}</label>
    ${
      options
        ? html`<select ...${more}>
            <option value="">${placeholder}</option>
            ${options.map((one) => html`<option>${one}</option>`)}
          </select>`
        : rows
          ? html`<textarea ...${more} rows=${rows} dir="auto" class=${isCode && "mono"} spellcheck=${!isCode} />`
          : html`<input ...${more} inputmode=${inputmode} autocomplete="off" />`
    }
    <p class="error" id="${id}-error" role="alert">${error}</p>
    <p class="hint" id="${id}-about">${about}</p>
    ${
      example &&
      html`<button type="button" class="quiet" onclick=${() => read(JSON.stringify(example, null, 2))}>
        Example of ${label}
      </button>`
    }
  </div>`;
}
