// The feed of the engine's pictures: one connection while somebody looks, and a new one after it breaks.

import { ServerError } from "../server.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

/** Pictures of the engine while the view is shown and the tab is in front. */
export class Feed {
  #server;
  #onPicture;
  #onState;
  #shown = false;
  #abort = null;

  /**
   * `onPicture(picture)` gets each event; `onState(state, message)` is told "connecting", "open", "lost" or "refused".
   * The feed tries again after "lost", not after "refused".
   */
  constructor(server, onPicture, onState) {
    this.#server = server;
    this.#onPicture = onPicture;
    this.#onState = onState;
    document.addEventListener("visibilitychange", () => this.follow());
  }

  show() {
    this.#shown = true;
    this.follow();
  }

  hide() {
    this.#shown = false;
    this.follow();
  }

  /** Begin or end as the view is shown; try again after "refused". */
  follow() {
    const wanted = this.#shown && !document.hidden;
    if (wanted && !this.#abort) {
      this.#abort = new AbortController();
      this.#run(this.#abort.signal);
    } else if (!wanted && this.#abort) {
      this.#abort.abort();
      this.#abort = null;
    }
  }

  async #run(signal) {
    let wait = FIRST_WAIT_MS;
    while (!signal.aborted) {
      let lost = "The server has ended the feed.";
      try {
        this.#onState("connecting", "");
        for await (const { data } of this.#server.events("v1/engine/events", { signal })) {
          if (signal.aborted) return;
          wait = FIRST_WAIT_MS;
          this.#onState("open", "");
          this.#onPicture(JSON.parse(data));
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ServerError && [401, 403, 404].includes(error.status)) {
          this.#abort = null; // the next look tries again
          this.#onState("refused", error.message);
          return;
        }
        lost = error instanceof ServerError ? error.message : "The connection broke.";
        if (error.retryAfter) wait = Math.max(wait, error.retryAfter * 1000);
      }
      if (signal.aborted) return;
      this.#onState("lost", lost);
      await pause(wait, signal);
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }
}

/** Resolves after `ms`, or at once when `signal` aborts. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
