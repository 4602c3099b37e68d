// A JSON schema of the document, as words and as a list of fields.

import { resolve } from "../fields.js";
import { html, useState } from "../html.js";

const alternatives = (schema) => schema.anyOf ?? schema.oneOf ?? null;

/** A schema in words, such as "number 0 to 2, or null". */
export function words(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (alternatives(schema)) return [...new Set(alternatives(schema).map(words))].join(", or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.type === "array")
    return `list${limits(schema.minItems, schema.maxItems, "items")} of ${words(schema.items ?? {})}`;
  if (schema.type === "string") return `string${limits(schema.minLength, schema.maxLength, "characters")}`;
  if (schema.type === "number" || schema.type === "integer") {
    return (
      `${schema.type}${schema.exclusiveMinimum === undefined ? "" : ` above ${schema.exclusiveMinimum}`}` +
      limits(schema.minimum, schema.maximum ?? schema.exclusiveMaximum, "")
    );
  }
  if (Array.isArray(schema.type)) return schema.type.join(", or ");
  return schema.type ?? "anything";
}

function limits(least, most, unit) {
  const shown = (value) => (Math.abs(value) >= 2 ** 31 - 1 ? null : value);
  const [low, high] = [shown(least ?? Infinity), shown(most ?? Infinity)];
  const end = unit && ` ${unit}`;
  if (low === null && high === null) return "";
  if (low === null) return ` up to ${high}${end}`;
  return high === null ? ` from ${low}${end}` : ` ${low} to ${high}${end}`;
}

/** Text with `code` between backticks. */
export function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));
}

/** A field that only describes what this server does anyway: it takes one value, or null. */
const isHarmless = (schema) => Array.isArray(schema.enum) && !schema.description && schema.enum.includes(null);

/** The fields of an object schema, with what they refer to folded in; a schema without fields in words. */
export function Fields({ described, schema }) {
  const { properties = {}, required = [] } = schema;
  const listed = Object.entries(properties);
  if (!listed.length) return html`<p>${words(schema)}</p><${Nested} ...${{ described, schema }} />`;
  const own = listed.filter(([, field]) => !isHarmless(field));
  const harmless = listed.filter(([, field]) => isHarmless(field));
  own.sort(([a], [b]) => required.includes(b) - required.includes(a));
  const row = ([name, field]) => html`<div>
    <dt>
      <code>${name}</code> <span class="type">${words(field)}</span>${" "}
      ${required.includes(name) && html`<strong class="required">required</strong>`}
    </dt>
    <dd>
      ${field.description && html`<p>${prose(field.description)}</p>`}
      <${Nested} described=${described} schema=${field} />
    </dd>
  </div>`;
  return html`<dl class="fields">${own.map(row)}</dl>
    ${
      harmless.length > 0 &&
      html`<details>
        <summary>${harmless.length} fields of other servers, with these values only</summary>
        <ul>${harmless.map(([name, field]) => html`<li><code>${name}</code>: ${words(field)}</li>`)}</ul>
      </details>`
    }`;
}

/** The objects that a field can hold, each behind a summary; they may refer to themselves, so they open on demand. */
function Nested({ described, schema }) {
  const inner = alternatives(schema) ?? (schema.items ? [schema.items] : [schema]);
  return inner.map((part) => {
    if (part !== schema && !part.$ref) return html`<${Nested} described=${described} schema=${part} />`;
    const { name, schema: found } = resolve(described, part);
    if (name === null) return null;
    return html`<${Lazy} title=${name}>${() => html`
      ${found.description && html`<p>${prose(found.description)}</p>`}
      <${Fields} described=${described} schema=${found} />`}<//>`;
  });
}

/** A <details> whose content (a function) is made when it first opens. */
export function Lazy({ title, children: content, ...more }) {
  const [opened, open] = useState(false);
  return html`<details ...${more} ontoggle=${() => open(true)}>
    <summary>${title}</summary>${opened && content()}
  </details>`;
}
