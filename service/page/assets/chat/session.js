// The answers that are being written, one a conversation at most, and their way into the storage.

import { pathTo } from "./conversation.js";
import { bodyOf, fieldsOf } from "./request.js";
import { answer } from "./run.js";

const SAVE_MS = 400; // a closed tab loses at most this much of an answer

export class Session {
  /** `drawn(conversation, whole)` draws: the whole branch, or its last message. */
  constructor({ server, model, store, drawn }) {
    Object.assign(this, { server, model, store, drawn, runs: new Map(), unsaved: new Map() });
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
    this.runs.get(id)?.controller.abort();
  }

  /** Write the answer `node`. `continued`: its text so far, which the answer goes on from. */
  async write(conversation, node, continued = null) {
    const controller = new AbortController();
    const { head } = conversation;
    this.runs.set(head.id, { conversation, node, controller });
    this.unsaved.set(node.id, node);
    this.drawn(conversation, true);
    const draw = onceAtATime(
      requestAnimationFrame,
      () => this.running(conversation) && this.drawn(conversation, false),
    );
    const save = onceAtATime(
      (work) => setTimeout(work, SAVE_MS),
      () => this.running(conversation) && this.store.putNode(node),
    );
    await answer({
      server: this.server,
      model: this.model,
      node,
      bodyOf: (card) => {
        node.sent = { system: head.system, fields: fieldsOf(head, card), continued };
        return bodyOf(node.sent, pathTo(conversation, node.parent));
      },
      signal: controller.signal,
      changed() {
        draw();
        save();
      },
    });
    this.runs.delete(head.id);
    this.drawn(conversation, true);
    await this.store.putNode(node);
    this.unsaved.delete(node.id);
  }

  /** Whether this tab has a newer state of the message than the storage. */
  owns(node) {
    return this.unsaved.has(node.id);
  }

  /** The page goes: what was written stays. */
  #leave() {
    const written = new Set(Array.from(this.runs.values(), ({ node }) => node));
    for (const { controller } of this.runs.values()) controller.abort();
    for (const node of this.unsaved.values()) {
      this.store.putLast(written.has(node) ? { ...node, state: "stopped", notice: "" } : node);
    }
  }
}

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
