// The request fields that a person can change, with the ranges that the server's OpenAPI document gives them.

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {"number" | "integer" | "choice" | "strings"} kind
 * @property {number} [min]
 * @property {number} [max]
 * @property {boolean} [above]  Whether the value must be above `min`, not equal to it.
 * @property {string[]} [options]
 * @property {string} about  What the server says of the field.
 */

const OF_THE_CONTEXT = ["max_tokens", "min_tokens"];

/**
 * The fields of these names that `POST path` has, in this order. The model's card limits what counts tokens.
 * @returns {Promise<Field[]>}
 */
export async function readFields(server, path, names, card) {
  const document = await server.json("openapi.json");
  const body = document.paths[path].post.requestBody.content["application/json"].schema;
  const { properties } = resolve(document, body).schema;
  return names
    .filter((name) => name in properties)
    .map((name) => field(name, properties[name]))
    .filter(Boolean)
    .map((one) => (OF_THE_CONTEXT.includes(one.name) ? within(one, card.max_model_len) : one));
}

const within = (field, most) => ({ ...field, max: Math.min(field.max, most ?? Infinity) });

/** The schema that a `$ref` names, with that name. */
export function resolve(document, schema) {
  if (!schema.$ref) return { name: null, schema };
  const path = schema.$ref.replace(/^#\//, "").split("/");
  return { name: path.at(-1), schema: path.reduce((part, key) => part[key], document) };
}

function field(name, property) {
  const types = property.anyOf ?? [property];
  const about = property.description ?? "";
  const number = types.find(({ type }) => type === "number" || type === "integer");
  if (number) {
    const above = number.minimum === undefined && number.exclusiveMinimum !== undefined;
    const min = number.minimum ?? number.exclusiveMinimum ?? Number.MIN_SAFE_INTEGER;
    const safe = (value) => Math.max(Number.MIN_SAFE_INTEGER, Math.min(Number.MAX_SAFE_INTEGER, value));
    return { name, kind: number.type, min: safe(min), max: safe(number.maximum ?? Infinity), above, about };
  }
  const choice = types.find((type) => type.enum?.length > 1);
  if (choice) return { name, kind: "choice", options: choice.enum, about };
  return types.some(({ type }) => type === "array") ? { name, kind: "strings", about } : null;
}

/** The range in words, or "" where it is the whole range of integers. */
export function rangeOf({ min, max, above }) {
  const huge = (value) => Math.abs(value) >= 2 ** 31 - 1;
  if (min === undefined || (huge(min) && huge(max))) return "";
  const low = above ? `above ${min}` : `${min}`;
  if (huge(max)) return above ? low : `from ${low}`;
  return above ? `${low}, up to ${max}` : `${low} to ${max}`;
}

/** The value of a text. Throws an Error that names the field, the value and the limit. */
export function valueOf(field, text) {
  if (field.kind === "choice") return text;
  if (field.kind === "strings") return text.split("\n").filter(Boolean).map(unescaped);
  const value = Number(text);
  const wrong = !Number.isFinite(value) || (field.kind === "integer" && !Number.isInteger(value));
  if (wrong || value < field.min || value > field.max || (field.above && value === field.min)) {
    const kind = field.kind === "integer" ? "an integer" : "a number";
    const range = rangeOf(field) || `${field.min} to ${field.max}`;
    throw new Error(`${field.name}: expected ${kind}, ${range}; got ${text}`);
  }
  return value;
}

const ESCAPES = { n: "\n", t: "\t", "\\": "\\" };
const unescaped = (text) => text.replace(/\\([nt\\])/g, (_, letter) => ESCAPES[letter]);

/** The text of a value, as `valueOf` reads it. */
export function textOf(value) {
  if (value === undefined) return "";
  if (!Array.isArray(value)) return String(value);
  return value
    .map((one) => one.replace(/[\\\n\t]/g, (found) => ({ "\n": "\\n", "\t": "\\t" })[found] ?? "\\\\"))
    .join("\n");
}
