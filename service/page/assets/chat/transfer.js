// Conversations as a file. The texts of an import are as harmless as a model's.

import { newConversation, newId, titleOf } from "./conversation.js";

const FORMAT = "noria-conversations";
const VERSION = 1;
const ROLES = ["user", "assistant", "tool"];

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

function conversation({ nodes, ...head }, at) {
  if (!isTree(nodes)) throw new Error(`conversations[${at}].nodes: expected a tree of messages`);
  const id = newId();
  const ids = new Map(nodes.map((node) => [node.id, newId()]));
  const made = nodes.map((node) => {
    const state = ["waiting", "writing"].includes(node.state) ? "stopped" : node.state;
    const images = (node.images ?? []).filter((url) => url.startsWith("data:")); // another address would tell of it
    return { ...node, id: ids.get(node.id), conversation: id, parent: ids.get(node.parent) ?? null, state, images };
  });
  const leaf = ids.get(head.leaf) ?? made.at(-1)?.id ?? null;
  const whole = { ...newConversation().head, ...head, id, title: titleOf(head.title), updated: Date.now(), leaf };
  return { head: whole, nodes: new Map(made.map((node) => [node.id, node])) };
}

/** Whether each message has a role, a text, an id of its own, and a way to a root: a cycle would hang the page. */
function isTree(nodes) {
  const parents = new Map(nodes.map(({ id, parent }) => [id, parent]));
  const ends = ({ id }) => {
    let n = 0;
    for (let at = id; parents.has(at) && n <= nodes.length; at = parents.get(at)) n++;
    return n <= nodes.length;
  };
  const isMessage = ({ role, content }) => ROLES.includes(role) && typeof content === "string";
  return parents.size === nodes.length && nodes.every((node) => isMessage(node) && ends(node));
}
