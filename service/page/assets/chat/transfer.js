// Conversations as a file: export, and an import that believes nothing.

import { newId, titleOf } from "./conversation.js";

const FORMAT = "noria-conversations";
const VERSION = 1;
const LARGEST = 100_000_000; // bytes
const IMAGE = /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+$/;
const STATES = ["done", "stopped", "failed"];

/** The text of a file with these conversations. */
export function exported(conversations) {
  const plain = conversations.map(({ head, nodes }) => ({ ...head, nodes: [...nodes.values()] }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations: plain }, null, 1);
}

export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 0);
}

/** The conversations of a file, with new ids. Throws an Error that says what is wrong. */
export async function imported(file, fields) {
  if (file.size > LARGEST) throw new Error(`the file has ${file.size} bytes, the limit is ${LARGEST}`);
  let content;
  try {
    content = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`the file is not JSON (${error.message})`);
  }
  if (content?.format !== FORMAT) throw new Error(`the file is no export of conversations (format is not ${FORMAT})`);
  if (content.version !== VERSION)
    throw new Error(`the file has version ${content.version}, this page reads ${VERSION}`);
  const names = new Set(fields.map(({ name }) => name));
  return list(content, "conversations", "").map((item, at) => conversation(item, `conversations[${at}]`, names));
}

function check(holds, where, expected) {
  if (!holds) throw new Error(`${where}: expected ${expected}`);
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function list(object, name, where) {
  check(isObject(object), where || "the file", "an object");
  const value = object[name] ?? [];
  check(Array.isArray(value), `${where}.${name}`, "a list");
  return value;
}

function string(object, name, where) {
  const value = object[name] ?? "";
  check(typeof value === "string", `${where}.${name}`, "a string");
  return value;
}

function number(object, name, where) {
  const value = object[name] ?? 0;
  check(Number.isFinite(value), `${where}.${name}`, "a number");
  return value;
}

function conversation(plain, where, names) {
  check(isObject(plain), where, "an object");
  const id = newId();
  const ids = new Map();
  const nodes = list(plain, "nodes", where).map((item, at) => node(item, `${where}.nodes[${at}]`, id, ids));
  for (const made of nodes) made.parent = ids.get(made.parent) ?? null;
  checkTree(nodes, where);
  const head = {
    id,
    title: titleOf(string(plain, "title", where)),
    created: number(plain, "created", where),
    updated: Date.now(),
    system: string(plain, "system", where),
    fields: changes(plain.fields ?? {}, `${where}.fields`, names),
    schema: string(plain, "schema", where),
    tools: string(plain, "tools", where),
    scores: plain.scores === true,
    leaf: ids.get(plain.leaf) ?? nodes.at(-1)?.id ?? null,
  };
  return { head, nodes: new Map(nodes.map((made) => [made.id, made])) };
}

/** A cycle would hang the page. */
function checkTree(nodes, where) {
  const parents = new Map(nodes.map(({ id, parent }) => [id, parent]));
  const rooted = new Set([null]);
  for (const { id } of nodes) {
    const walk = [];
    for (let at = id; !rooted.has(at); at = parents.get(at)) {
      check(!walk.includes(at), `${where}.nodes`, "a tree, found a cycle");
      walk.push(at);
    }
    for (const passed of walk) rooted.add(passed);
  }
}

/** Changed fields: known names, plain values. The server checks their ranges. */
function changes(fields, where, names) {
  check(isObject(fields), where, "an object");
  const plain = (value) => ["number", "string"].includes(typeof value);
  return Object.fromEntries(
    Object.entries(fields).map(([name, value]) => {
      check(names.has(name), `${where}.${name}`, "a field of this page");
      check(plain(value) || (Array.isArray(value) && value.every(plain)), `${where}.${name}`, "a number or text");
      return [name, value];
    }),
  );
}

function node(plain, where, conversationId, ids) {
  check(isObject(plain), where, "an object");
  const { role, parent = null } = plain;
  check(["user", "assistant", "tool"].includes(role), `${where}.role`, "user, assistant or tool");
  check(!ids.has(plain.id), `${where}.id`, "an id of its own");
  const id = newId();
  ids.set(string(plain, "id", where), id);
  const base = { id, conversation: conversationId, parent, created: number(plain, "created", where), role };
  return { ...base, content: string(plain, "content", where), ...PARTS[role](plain, where) };
}

const PARTS = {
  user: (plain, where) => ({
    images: list(plain, "images", where).map((url, at) => image(url, `${where}.images[${at}]`)),
  }),
  tool: (plain, where) => ({ callId: string(plain, "callId", where) }),
  assistant: (plain, where) => ({
    thought: string(plain, "thought", where),
    calls: list(plain, "calls", where).map((item, at) => call(item, `${where}.calls[${at}]`)),
    state: STATES.includes(plain.state) ? plain.state : "stopped",
    finish: string(plain, "finish", where),
    error: string(plain, "error", where),
    stats: numbers(plain.stats ?? {}, `${where}.stats`),
    scores: list(plain, "scores", where).map((item, at) => score(item, `${where}.scores[${at}]`)),
  }),
};

function numbers(stats, where) {
  check(isObject(stats), where, "an object");
  const names = ["prompt", "tokens", "cached", "speed", "queue", "first"].filter((name) => stats[name] != null);
  return Object.fromEntries(names.map((name) => [name, number(stats, name, where)]));
}

function score(plain, where) {
  const pairs = list(plain, "top", where).map((pair, at) => {
    check(Array.isArray(pair), `${where}.top[${at}]`, "a pair");
    return [string(pair, 0, `${where}.top[${at}]`), number(pair, 1, `${where}.top[${at}]`)];
  });
  const texts = Object.fromEntries(["token", "shown"].map((name) => [name, string(plain, name, where)]));
  return { ...texts, logprob: number(plain, "logprob", where), top: pairs };
}

function image(url, where) {
  check(typeof url === "string" && IMAGE.test(url), where, "an image as a data URL");
  return url;
}

function call(plain, where) {
  check(isObject(plain), where, "an object");
  return Object.fromEntries(["id", "name", "arguments"].map((name) => [name, string(plain, name, where)]));
}
