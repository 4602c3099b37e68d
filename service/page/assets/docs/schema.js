// A JSON schema of the document, as words and as a list of fields.

import { element } from "../dom.js";

/** The schema that a `$ref` names, with that name. */
export function resolve(document, schema) {
  if (!schema.$ref) return { name: null, schema };
  const path = schema.$ref.replace(/^#\//, "").split("/");
  return { name: path.at(-1), schema: path.reduce((part, key) => part[key], document) };
}

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
  return text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part));
}

/** A field that only describes what this server does anyway: it takes one value, or null. */
const isHarmless = (schema) => Array.isArray(schema.enum) && !schema.description && schema.enum.includes(null);

/** The fields of an object schema, with what they refer to folded in. Null if it has none. */
export function fields(document, schema) {
  const { properties = {}, required = [] } = schema;
  const listed = Object.entries(properties);
  if (!listed.length) return null;
  const own = listed.filter(([, field]) => !isHarmless(field));
  const harmless = listed.filter(([, field]) => isHarmless(field));
  own.sort(([a], [b]) => required.includes(b) - required.includes(a));
  const rows = own.map(([name, field]) => row(document, name, field, required.includes(name)));
  return [element("dl", { class: "fields" }, rows), harmless.length ? folded(harmless) : null];
}

function row(document, name, field, required) {
  const note = required ? element("strong", { class: "required" }, "required") : null;
  return element(
    "div",
    {},
    element("dt", {}, element("code", {}, name), " ", element("span", { class: "type" }, words(field)), " ", note),
    element("dd", {}, field.description ? element("p", {}, prose(field.description)) : null, nested(document, field)),
  );
}

function folded(harmless) {
  const items = harmless.map(([name, field]) => element("li", {}, element("code", {}, name), `: ${words(field)}`));
  return element(
    "details",
    {},
    element("summary", {}, `${harmless.length} fields of other servers, with these values only`),
    element("ul", {}, items),
  );
}

/** The objects that a field can hold, each behind a summary; they may refer to themselves, so they open on demand. */
export function nested(document, schema) {
  const inner = alternatives(schema) ?? (schema.items ? [schema.items] : [schema]);
  return inner.flatMap((part) => {
    if (part !== schema && !part.$ref) return nested(document, part);
    const { name, schema: found } = resolve(document, part);
    if (name === null) return [];
    const view = () => fields(document, found) ?? [element("p", {}, words(found)), nested(document, found)];
    return [lazy(name, () => [found.description ? element("p", {}, prose(found.description)) : null, view()])];
  });
}

/** A <details> whose content is made when it first opens. */
export function lazy(title, content) {
  const box = element("details", {}, element("summary", {}, title));
  box.addEventListener("toggle", () => box.append(...[content()].flat(2).filter(Boolean)), { once: true });
  return box;
}
