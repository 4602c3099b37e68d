// What an operator must know of the engine's state, and what requests wait for.

/** The states to warn of, each with its level and a text. */
export const STATES = {
  restarting: [
    "bad",
    "The engine restarts. Requests that have sent nothing yet are computed again; the others have failed.",
  ],
  unloaded: ["calm", "The model is not loaded. The next request loads it."],
  loading: ["calm", "The model loads."],
  draining: ["warn", "It drains: what runs is finished, and no new request begins."],
};

const REASONS = {
  pages: "pages",
  sequences: "a place among the running requests",
  tokens: "rows in a step: prompts fill them",
  adapters: "a place for its adapter",
  fairness: "its turn: another key comes first",
  priority: "its turn: a request of higher priority comes first",
  grammar: "its grammar, which is compiled",
  disk: "pages of its prompt, which are read from the disk",
};

/** What a request waits for, in words; the server's own word if the page does not know it. */
export const wordsOf = (reason) => REASONS[reason] ?? reason;

/** What the view calls a sequence. `names` has those that this page may know. */
export const called = (names, id) => `#${id}${names.has(id) ? ` (${names.get(id)})` : ""}`;
