// One operation: what it takes, what it answers, and a form that tries it.

import { resolve } from "../fields.js";
import { html } from "../html.js";
import { Fields, Lazy, prose, words } from "./schema.js";
import { Trial } from "./trial.js";

const JSON_TYPE = "application/json";
const FORM_TYPE = "multipart/form-data";

const bodyOf = ({ requestBody }) => requestBody?.content[JSON_TYPE] ?? requestBody?.content[FORM_TYPE] ?? null;

/** The example of a body. It names the chosen model where there are several. */
function exampleOf(described, { schema, example = {} }, { menu, chosen }) {
  const { properties = {} } = resolve(described, schema).schema;
  return menu.length && "model" in properties ? { ...example, model: chosen.id } : example;
}

/** What the search reads. */
export function textOf(described, method, path, operation) {
  const body = bodyOf(operation);
  const { properties = {} } = body ? resolve(described, body.schema).schema : {};
  const { summary, description = "" } = operation;
  return [method, path, summary, description, ...Object.keys(properties)].join(" ").toLowerCase();
}

export function Operation({ id, described, server, model, method, path, operation, hidden }) {
  const { description, summary, responses } = operation;
  const body = bodyOf(operation);
  const title = html`<span class="method ${method}">${method.toUpperCase()}</span> <h3>${path}</h3>${" "}
    <span class="faint">${summary}</span>`;
  return html`<${Lazy} id=${id} class="operation" hidden=${hidden} title=${title}>${() => html`
    ${description && html`<p>${prose(description)}</p>`}
    <h4>Try it</h4>
    <${Trial} example=${body && exampleOf(described, body, model)} ...${{ server, method, path, operation }} />
    ${body && html`<h4>Body</h4><${Fields} described=${described} schema=${resolve(described, body.schema).schema} />`}
    <h4>Answers</h4>
    <dl class="fields">
      ${Object.entries(responses).map(([status, answer]) => html`<${Answer} ...${{ described, status, answer }} />`)}
    </dl>`}<//>`;
}

function Answer({ described, status, answer: { description, content = {}, headers = {} } }) {
  const kind = ([type, { schema }]) => {
    const found = () => html`<${Fields} described=${described} schema=${resolve(described, schema).schema} />`;
    return html`<${Lazy} title="${type}: ${words(schema)}">${found}<//>`;
  };
  const header = ([name, { description = "" }]) => html`<li><code>${name}</code>: ${description}</li>`;
  const named = Object.entries(headers);
  return html`<div>
    <dt><code>${status}</code> ${prose(description)}</dt>
    <dd>
      ${Object.entries(content).map(kind)}
      ${named.length > 0 && html`<${Lazy} title="Headers">${() => html`<ul>${named.map(header)}</ul>`}<//>`}
    </dd>
  </div>`;
}
