// Load for a newcomer: a few prompts that begin alike, so that the wheel turns. They go in one request: a browser opens
// six connections to a server, for all of its tabs.

const CONTEXT = 512; // where the model's card does not say
const MOST = 240; // tokens of an answer
const LEAST = 40; // a model may have nothing to say to a prompt, and the wheel would not turn
// The same beginning for all, longer than a page of 32 tokens: they share it.
const OPENING =
  "The noria is a wheel that lifts water from a river. Its buckets go down empty and come up full, " +
  "one after the other, day and night, and the fields around it stay green. ";
const PROMPTS = [
  "Tell how a mill works.",
  "Name a river.",
  "Describe a garden in spring, with its water and its trees.",
  "Say hello.",
  "Write about the sea.",
  "Count.",
  "Explain rain.",
  "Tell a story of a miller, his wheel and a dry summer.",
];

/** Sends the prompts and tells how many still run. */
export class Load {
  #abort = null;
  failure = ""; // why the last load failed

  constructor(server, onCount) {
    Object.assign(this, { server, onCount });
  }

  get active() {
    return this.#abort !== null;
  }

  /** Send all prompts to the model of a card. Resolves when all answers have ended. */
  async send({ id: model, max_model_len: context = CONTEXT }) {
    this.#abort = new AbortController();
    this.failure = "";
    this.onCount(PROMPTS.length);
    try {
      await this.#complete(model, Math.min(MOST, context >> 1));
    } catch (error) {
      if (error.name !== "AbortError") this.failure = `The load failed: ${error.message}`;
    }
    this.#abort = null;
    this.onCount(0);
  }

  stop() {
    this.#abort?.abort();
  }

  async #complete(model, most) {
    const prompt = PROMPTS.map((text) => OPENING + text);
    const body = { model, prompt, max_tokens: most, min_tokens: Math.min(LEAST, most), stream: true };
    const { signal } = this.#abort;
    let left = PROMPTS.length;
    for await (const { data } of this.server.events("v1/completions", { method: "POST", body, signal })) {
      if (data === "[DONE]") return;
      const { choices, error } = JSON.parse(data);
      if (error) throw new Error(error.message);
      const ended = choices.filter((choice) => choice.finish_reason).length;
      if (ended) this.onCount((left -= ended));
    }
  }
}
