// Conversations as a file. An import takes what has the right type; its texts are as harmless as a model's.

import { newId, titleOf } from "./conversation.js";
import { NAMES } from "./request.js";

const FORMAT = "noria-conversations";
const VERSION = 1;
const ROLES = ["user", "assistant", "tool"];
const STATES = ["done", "stopped", "failed"];
const NODE = {
  id: "",
  parent: "",
  created: 0,
  role: "",
  content: "",
  images: [""],
  callId: "",
  thought: "",
  calls: [{ id: "", name: "", arguments: "" }],
  state: "",
  finish: "",
  error: "",
  stats: { prompt: 0, tokens: 0, cached: 0, speed: 0, first: 0 },
  scores: [{ token: "", shown: "", logprob: 0, top: [["", 0]] }],
};
const HEAD = { title: "", created: 0, system: "", schema: "", tools: "", raw: false, scores: false, leaf: "" };

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
export async function imported(file) {
  let content;
  try {
    content = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`the file is not JSON (${error.message})`);
  }
  if (content?.format !== FORMAT) throw new Error(`the file is no export of conversations (format is not ${FORMAT})`);
  if (content.version !== VERSION)
    throw new Error(`the file has version ${content.version}, this page reads ${VERSION}`);
  return content.conversations.map(conversation);
}

function conversation(plain, at) {
  const { nodes, leaf, ...head } = like({ ...HEAD, nodes: [NODE] }, plain);
  const id = newId();
  const ids = new Map(nodes.map((node) => [node.id, newId()]));
  if (!isTree(nodes)) throw new Error(`conversations[${at}].nodes: expected a tree of messages`);
  const made = nodes.map((node) => ({
    ...node,
    id: ids.get(node.id),
    conversation: id,
    parent: ids.get(node.parent) ?? null,
    images: node.images.filter((url) => url.startsWith("data:image/")), // another address would tell that it was read
    state: STATES.includes(node.state) ? node.state : "stopped",
  }));
  const title = titleOf(head.title);
  const end = ids.get(leaf) ?? made.at(-1)?.id ?? null;
  const whole = { ...head, id, title, updated: Date.now(), fields: fieldsIn(plain?.fields), leaf: end };
  return { head: whole, nodes: new Map(made.map((node) => [node.id, node])) };
}

/** Whether each message has a role, an id of its own, and a way to a root: a cycle would hang the page. */
function isTree(nodes) {
  const parents = new Map(nodes.map(({ id, parent }) => [id, parent]));
  const ends = ({ id }) => {
    let n = 0;
    for (let at = id; parents.has(at) && n <= nodes.length; at = parents.get(at)) n++;
    return n <= nodes.length;
  };
  return parents.size === nodes.length && nodes.every((node) => ROLES.includes(node.role) && ends(node));
}

/** Fields that the form has. The server checks their values. */
function fieldsIn(fields) {
  const isText = (value) => ["number", "string"].includes(typeof value);
  const isPlain = (value) => isText(value) || (Array.isArray(value) && value.every(isText));
  const known = Object.entries(fields ?? {}).filter(([name, value]) => NAMES.includes(name) && isPlain(value));
  return Object.fromEntries(known);
}

/** The part of `value` that has the type of `sample`. A list of two samples is a pair. */
function like(sample, value) {
  if (Array.isArray(sample) && sample.length > 1) return sample.map((part, at) => like(part, value?.[at]));
  if (Array.isArray(sample)) return Array.isArray(value) ? value.map((item) => like(sample[0], item)) : [];
  if (typeof sample === typeof value && typeof sample !== "object") return value;
  if (typeof sample !== "object") return sample;
  return Object.fromEntries(Object.entries(sample).map(([name, part]) => [name, like(part, value?.[name])]));
}
