// A conversation: a head with its settings, and a tree of messages. Edits and new answers are siblings in the tree.

/**
 * @typedef {object} Head
 * @property {string} id
 * @property {string} title
 * @property {number} created  Milliseconds since 1970, as `updated`.
 * @property {number} updated
 * @property {string} system  The system prompt.
 * @property {Record<string, number | string | string[]>} fields  Request fields that the person has changed.
 * @property {string} schema  The text of a JSON schema, or "".
 * @property {string} tools  The text of a JSON list of tools, or "".
 * @property {boolean} raw  Whether the model continues the text as it is, without the chat template.
 * @property {boolean} scores  Whether answers come with probabilities.
 * @property {string | null} leaf  The last node of the branch on screen.
 *
 * @typedef {object} Node
 * @property {string} id
 * @property {string} conversation
 * @property {string | null} parent
 * @property {number} created
 * @property {"user" | "assistant" | "tool"} role
 * @property {string} content
 * @property {string[]} [images]  Data URLs of a user's images and recordings.
 * @property {string} [callId]  The call that a tool message answers.
 * @property {string} [thought]
 * @property {{id: string, name: string, arguments: string}[]} [calls]
 * @property {Score[]} [scores]
 * @property {"waiting" | "writing" | "done" | "stopped" | "failed"} [state]  Of an answer.
 * @property {string} [finish]  The server's finish reason.
 * @property {string} [error]
 * @property {object} [stats]
 * @property {object} [sent]  What request.js needs to write the request again.
 *
 * @typedef {{token: string, shown: string, logprob: number, top: [string, number][]}} Score
 *
 * @typedef {{head: Head, nodes: Map<string, Node>}} Conversation
 */

const TITLE = 60;

/** A random name. `crypto.randomUUID` exists on secure origins only. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @returns {Conversation} */
export function newConversation({ raw = false, scores = false } = {}) {
  const now = Date.now();
  const texts = { title: "", system: "", schema: "", tools: "" };
  const head = { id: newId(), created: now, updated: now, ...texts, fields: {}, raw, scores, leaf: null };
  return { head, nodes: new Map() };
}

/** Add a node below `parent` and make it the end of the branch on screen. */
export function addNode(conversation, parent, content) {
  const node = { id: newId(), conversation: conversation.head.id, parent, created: Date.now(), ...content };
  conversation.nodes.set(node.id, node);
  conversation.head.leaf = node.id;
  return node;
}

/** The nodes from the root to `leaf`. */
export function pathTo(conversation, leaf = conversation.head.leaf) {
  const path = [];
  for (let node = conversation.nodes.get(leaf); node; node = conversation.nodes.get(node.parent)) path.unshift(node);
  return path;
}

/** The alternatives of each message, oldest first, by their parent. */
export function versions({ nodes }) {
  const all = Map.groupBy(nodes.values(), ({ parent }) => parent);
  for (const some of all.values()) {
    some.sort((one, other) => one.created - other.created || (one.id < other.id ? -1 : 1));
  }
  return all;
}

/** Put the branch through `node` on screen, down to its newest end. */
export function choose(conversation, node) {
  const below = versions(conversation);
  let last = node;
  while (below.has(last.id)) last = below.get(last.id).at(-1);
  conversation.head.leaf = last.id;
}

export function titleOf(text) {
  const line = text.trim().split(/\s+/).join(" ");
  return line.length > TITLE ? `${line.slice(0, TITLE - 1)}…` : line || "Untitled";
}
