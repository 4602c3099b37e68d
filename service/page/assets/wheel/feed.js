// The feed of the engine's pictures: one connection while somebody looks, and a new one after it breaks.

import { ServerError } from "../server.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

/** `take(picture)` gets each picture, `warn(text)` the reason for none. After a refusal only `follow` tries again. */
export class Feed {
  #visible = false;
  #abort = null;
  #model = null;

  constructor(server, take, warn) {
    Object.assign(this, { server, take, warn });
    document.addEventListener("visibilitychange", () => this.follow());
  }

  /** Show the engine of the model with this name; null: of the server's first. */
  of(model) {
    if (model !== this.#model) {
      this.#abort?.abort();
      this.#abort = null;
    }
    this.#model = model;
    this.follow();
  }

  /** Begin or end: there are pictures while the view is visible and the tab is in front. */
  follow(visible = this.#visible) {
    this.#visible = visible;
    const follows = visible && !document.hidden;
    if (follows && !this.#abort) {
      this.#abort = new AbortController();
      this.#run(this.#abort.signal);
    } else if (!follows && this.#abort) {
      this.#abort.abort();
      this.#abort = null;
    }
  }

  async #run(signal) {
    let wait = FIRST_WAIT_MS;
    const path = `v1/engine/events${this.#model ? `?model=${encodeURIComponent(this.#model)}` : ""}`;
    while (!signal.aborted) {
      let lost = "The server has ended the feed.";
      try {
        for await (const { data } of this.server.events(path, { signal })) {
          if (signal.aborted) return;
          wait = FIRST_WAIT_MS;
          this.take(JSON.parse(data));
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ServerError && [401, 403, 404].includes(error.status)) {
          this.#abort = null;
          this.warn(error.message);
          return;
        }
        lost = error instanceof ServerError ? error.message : "The connection broke.";
        if (error.retryAfter) wait = Math.max(wait, error.retryAfter * 1000);
      }
      if (signal.aborted) return;
      this.warn(`${lost} Trying again…`);
      await pause(wait, signal);
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }
}

/** Resolves after `ms`, or at once when `signal` aborts. */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
