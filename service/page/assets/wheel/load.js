// Load for a newcomer: a few completions of different lengths, so that the wheel turns.

import { pause } from "./feed.js";

const BETWEEN_MS = 350;
// The same beginning for all, longer than a page of 32 tokens: they share it.
const OPENING =
  "The noria is a wheel that lifts water from a river. Its buckets go down empty and come up full, " +
  "one after the other, day and night, and the fields around it stay green. ";
const REQUESTS = [
  ["Tell how a mill works.", 320],
  ["Name a river.", 60],
  ["Describe a garden in spring, with its water and its trees.", 220],
  ["Say hello.", 40],
  ["Write about the sea.", 260],
  ["Count.", 120],
  ["Explain rain.", 180],
  ["Tell a story of a miller, his wheel and a dry summer.", 400],
];

/** Sends the requests and tells how many still run. */
export class Load {
  #server;
  #onCount;
  #abort = null;
  #failed = 0;
  #reason = "";

  constructor(server, onCount) {
    this.#server = server;
    this.#onCount = onCount;
  }

  get active() {
    return this.#abort !== null;
  }

  /** How many of the requests have failed, and why the first of them did. "" if none has. */
  get failure() {
    return this.#failed ? `${this.#failed} of ${REQUESTS.length} failed: ${this.#reason}.` : "";
  }

  /** Send all requests, one after the other, without waiting for answers. Resolves when all have ended. */
  async send(context) {
    this.#abort = new AbortController();
    this.#failed = 0;
    this.#reason = "";
    const { signal } = this.#abort;
    let running = REQUESTS.length;
    this.#onCount(running);
    const one = async ([prompt, tokens], index) => {
      await pause(index * BETWEEN_MS, signal);
      try {
        if (!signal.aborted) await this.#complete(OPENING + prompt, Math.min(tokens, context >> 1), signal);
      } catch (error) {
        if (error.name !== "AbortError") this.#note(error);
      }
      this.#onCount(--running);
    };
    await Promise.all(REQUESTS.map(one));
    this.#abort = null;
  }

  stop() {
    this.#abort?.abort();
  }

  #note(error) {
    this.#failed++;
    this.#reason ||= error.message.replace(/\.$/, "");
  }

  async #complete(prompt, tokens, signal) {
    const body = { prompt, max_tokens: tokens, ignore_eos: true, stream: true };
    for await (const { data } of this.#server.events("v1/completions", { method: "POST", body, signal })) {
      if (data === "[DONE]") return;
    }
  }
}
