// The model of the server. Another one may follow it when the server restarts.

import { ServerError } from "./server.js";

const RETRY_MS = 1000;

/** Whether the server does not know the model of the request. */
export const isGone = ({ status, param }) => status === 404 && param === "model";

export class Model {
  #found = null; // a promise of the card
  #known = null; // the card itself
  #followers = [];

  /** `tell(text)` gets the model's name, or a line for the person while there is none. */
  constructor(server, tell) {
    Object.assign(this, { server, tell });
  }

  /** The card, once the server is ready. Rejects if the person does not give the key that the server needs. */
  card() {
    if (!this.#found) {
      this.#found = this.#find();
      this.#found.catch(() => (this.#found = null)); // the next caller asks for the key again
    }
    return this.#found;
  }

  /** The card of the model that is served now. */
  renewed() {
    this.#found = null;
    return this.card();
  }

  /** Call `know(card)` for this model and for each that follows it. */
  follow(know) {
    this.#followers.push(know);
    if (this.#known) queueMicrotask(() => know(this.#known));
  }

  async #find() {
    const card = await this.#read();
    this.#known = card;
    this.tell(card.id);
    for (const know of this.#followers) know(card);
    return card;
  }

  async #read() {
    for (;;) {
      try {
        const { data } = await this.server.json("v1/models");
        return await this.server.json(`v1/models/${data[0].id}`);
      } catch (error) {
        if (!(error instanceof ServerError)) throw error;
        this.tell(error.message);
        if (error.status === 401) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}
