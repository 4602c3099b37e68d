// The answers that are being written, one a conversation at most, and their way into the storage.

import { newId, pathTo, versions } from "./conversation.js";
import { bodyOf, fieldsOf } from "./request.js";
import { answer } from "./run.js";

const LEFT = "noria-left"; // in the tab's storage
const SAVE_MS = 400; // a closed tab loses at most this much of an answer

export class Session {
  /** `drawn(conversation, node)` draws. `node` is the answer that begins or ends, if one does. */
  constructor({ server, model, store, drawn }) {
    Object.assign(this, { server, model, store, drawn, runs: new Map(), unsaved: new Map(), heads: new Set() });
    addEventListener("pagehide", () => this.#leave());
  }

  running(conversation) {
    return this.runs.has(conversation.head.id);
  }

  /** The conversation of a run, which has newer messages than the storage. */
  live(id) {
    return this.runs.get(id)?.conversation ?? null;
  }

  stop(id) {
    const run = this.runs.get(id);
    run?.controller.abort();
    if (run?.node.sent) this.server.json(`v1/requests/${run.node.sent.id}`, { method: "DELETE" }).catch(() => {});
  }

  /** Write the answer `node`, which goes on from `continued`. `resumes`: a reload has cut off its request. */
  async write(conversation, node, continued = null, resumes = false) {
    const controller = new AbortController();
    const { head } = conversation;
    const all = versions(conversation).get(node.parent);
    const before = all.slice(0, all.indexOf(node)).filter(({ state }) => state !== "failed").length;
    this.runs.set(head.id, { conversation, node, controller });
    this.unsaved.set(node.id, node);
    this.drawn(conversation, node);
    const draw = onceAtATime(requestAnimationFrame, () => this.running(conversation) && this.drawn(conversation));
    const save = onceAtATime(
      (work) => setTimeout(work, SAVE_MS),
      () => this.running(conversation) && this.store.putNode(node),
    );
    await answer({
      server: this.server,
      model: this.model,
      node,
      bodyOf: (card, limited) => {
        const { raw, system } = head;
        node.sent = { id: newId(), raw, system, fields: fieldsOf(head, card, { limited, before }), continued };
        return requestOf({ conversation, node });
      },
      resumed: resumes ? requestOf({ conversation, node }) : null,
      signal: controller.signal,
      changed() {
        draw();
        save();
      },
    });
    this.runs.delete(head.id);
    this.drawn(conversation, node);
    await this.store.putNode(node);
    this.unsaved.delete(node.id);
  }

  /** Do `work`, which stores a head and its nodes. A page that goes before its end stores them by itself. */
  async saving(head, nodes, work) {
    const others = nodes.filter((node) => !this.owns(node)); // answers are saved when they end
    for (const node of others) this.unsaved.set(node.id, node);
    this.heads.add(head);
    await work();
    this.heads.delete(head);
    for (const { id } of others) this.unsaved.delete(id);
  }

  /** Whether this tab has a newer state of the message than the storage. */
  owns(node) {
    return this.unsaved.has(node.id);
  }

  /** The page goes: keep for a reload what is not stored yet. */
  #leave() {
    for (const { controller } of this.runs.values()) controller.abort();
    const nodes = [...this.unsaved.values()];
    if (!nodes.length) return;
    try {
      sessionStorage.setItem(LEFT, JSON.stringify({ heads: [...this.heads], nodes })); // no transaction would end
    } catch {
      // larger than the tab's storage
    }
  }

  /** Store what this tab could not store before a reload, and go on with the answers that it cut off. */
  async restore() {
    const left = sessionStorage.getItem(LEFT);
    sessionStorage.removeItem(LEFT);
    if (!left) return;
    const { heads, nodes } = JSON.parse(left);
    for (const head of heads) await this.store.add({ head, nodes: new Map() });
    for (const node of nodes) await this.store.putNode(node);
    for (const { id, conversation, sent, state } of nodes) {
      if (!sent || !["waiting", "writing"].includes(state)) continue;
      const loaded = await this.store.load(conversation);
      if (loaded) this.write(loaded, loaded.nodes.get(id), null, true);
    }
  }
}

/** The body of a node's request. */
const requestOf = ({ conversation, node }) => bodyOf(node.sent, pathTo(conversation, node.parent));

/** A function that schedules `work` unless it waits already. */
function onceAtATime(schedule, work) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    schedule(() => {
      waits = false;
      work();
    });
  };
}
