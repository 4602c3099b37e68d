// What an operator must see: restarts, a queue that grows, preemptions. Judged from the pictures of the last seconds.

const RECENT_SECONDS = 30;
const GROWTH_SECONDS = 5;

const STATES = {
  restarting: [
    "bad",
    "The engine restarts. Requests that have sent nothing yet are computed again; the others have failed.",
  ],
  loading: ["calm", "The model loads."],
  draining: ["warn", "The server drains: it finishes what runs and takes no new requests."],
};
export const REASONS = {
  pages: "pages",
  sequences: "a place among the running requests",
  tokens: "rows in a step: prompts fill them",
  adapters: "a place for its adapter",
  fairness: "its turn: another key comes first",
  priority: "its turn: a request of higher priority comes first",
  grammar: "its grammar, which is compiled",
};

/** Remembers half a minute of pictures. Its clock is the server's. */
export class Trouble {
  #past = []; // {time, waiting, preemptions, state}, oldest first

  /** Note a picture. Returns [level, text] of the gravest trouble, or null. */
  judge(picture) {
    const { time, waiting, preemptions, state } = picture;
    if (this.#past.at(-1)?.preemptions > preemptions) this.#forgetCounts(); // a new engine counts from 0
    this.#past.push({ time, waiting, preemptions, state });
    while (this.#past[0].time < time - RECENT_SECONDS) this.#past.shift();
    return STATES[state] ?? this.#preempted() ?? this.#growing(picture) ?? this.#restarted();
  }

  #forgetCounts() {
    for (const past of this.#past) past.preemptions = 0;
  }

  #preempted() {
    const n = this.#past.at(-1).preemptions - this.#past[0].preemptions;
    if (n <= 0) return null;
    return [
      "warn",
      "Pages ran out in the last 30 seconds, and the engine preempted requests: it computes them again later. " +
        "Fewer running requests (--max-sequences) or a larger cache (--cache-memory) help.",
    ];
  }

  #growing({ time, waiting, sequences }) {
    if (!waiting) return null;
    const before = this.#past.findLast((past) => past.time <= time - GROWTH_SECONDS);
    if (!before?.waiting || waiting < before.waiting) return null;
    const reason = sequences.find((sequence) => sequence.reason)?.reason;
    return [
      "warn",
      `The queue ${waiting > before.waiting ? "grows" : "stands"}. ` +
        (reason ? `The first request waits for ${REASONS[reason] ?? reason}.` : "Requests come faster than they end."),
    ];
  }

  #restarted() {
    if (!this.#past.some(({ state }) => state === "restarting")) return null;
    return ["warn", "The engine has restarted and serves again."];
  }
}
