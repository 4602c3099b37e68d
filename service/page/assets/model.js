// The models of the server, and the one that answers. Others may follow them when the server restarts.

import { stateOf } from "./card.js";
import { ServerError } from "./server.js";

const RETRY_MS = 1000;
const WATCH_MS = 500; // between two looks at models that load
const TO_LOAD = ["unloaded", "loading", "draining", "failed"]; // the model answers only once it is loaded
const CHANGING = ["loading", "draining", "restarting"];

/** Whether the server does not know the model of the request. */
export const isGone = ({ status, param }) => status === 404 && param === "model";

/** Models and adapters without their aliases. Empty where the server has one model: there is nothing to choose. */
function offered(cards) {
  const models = new Set(cards.map(({ id, root = id }) => root));
  return models.size > 1 ? cards.filter(({ id, root, parent }) => parent || id === root) : [];
}

/** What a card says of the model itself. */
const factsOf = ({ state, stage, progress, reason, memory_bytes, ...facts }) => JSON.stringify(facts);

/** Where the card of a model is. A slash in its name stays: some proxies refuse an encoded one. */
const pathOf = (id) => `v1/models/${id.split("/").map(encodeURIComponent).join("/")}`;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Model {
  menu = []; // the cards to choose from
  #found = null; // a promise of the chosen card
  #known = null; // the card itself
  #followers = [];
  #loads = 0; // that this page waits for
  #watches = false;

  /**
   * `tell(text)` gets the model's name, or its state where there are several, or a line for the person while there is
   * none. `drawn()` follows each change of `menu` and `chosen`.
   */
  constructor(server, tell, drawn) {
    Object.assign(this, { server, tell, drawn, place: `noria-model${server.base.pathname}` });
  }

  /** The card of the model that answers. */
  get chosen() {
    return this.#known;
  }

  /** Its card, once the server is ready. Rejects if the person does not give the key that the server needs. */
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

  /** The card of the chosen model, once it is loaded. Rejects with the reason if it cannot be loaded. */
  async loaded() {
    await this.card();
    const { id } = this.#known;
    const card = this.menu.length ? this.#take(await this.server.json(pathOf(id))) : this.#known;
    return TO_LOAD.includes(card.state) ? this.#load(card) : card;
  }

  /** Let another model answer, and load it. */
  async choose(id) {
    localStorage.setItem(this.place, id); // for this browser
    this.#know(this.menu.find((card) => card.id === id));
    try {
      await this.loaded();
    } catch (error) {
      this.tell(error.message);
    }
  }

  /** Call `know(card)` for this model and for each that follows it. */
  follow(know) {
    this.#followers.push(know);
    if (this.#known) queueMicrotask(() => know(this.#known));
  }

  /** Read the states of the models, and read them again while one of them changes. */
  async watch() {
    if (this.#watches) return;
    this.#watches = true;
    try {
      for (let changes = true; changes; ) {
        const loads = this.#loads;
        const { data } = await this.server.json("v1/models");
        this.#offer(data);
        this.#know(this.menu.find(({ id }) => id === this.#known.id) ?? this.#known);
        const waits = loads || this.#loads; // a load that ends meanwhile is read once more
        changes = this.#isChanging() || (waits && TO_LOAD.includes(this.#known.state));
        if (changes) await pause(WATCH_MS);
      }
    } catch (error) {
      this.tell(error.message);
    }
    this.#watches = false;
  }

  /** The result of `work`, which loads the model if that is not loaded: meanwhile the person sees how far it is. */
  async loadedBy(work) {
    this.#loads++;
    if (TO_LOAD.includes(this.#known.state)) this.watch();
    try {
      return await work;
    } finally {
      this.#loads--;
    }
  }

  async #load(card) {
    const load = this.server.json("v1/models/load", { method: "POST", body: { model: card.id } });
    try {
      return this.#take(await this.loadedBy(load));
    } catch (error) {
      if (error.status !== 403) throw error;
      return card; // this key may not load it by itself: the request does
    }
  }

  /** Take cards for the menu. They say less of a model that is not loaded: what is known of it stays. */
  #offer(cards) {
    const before = new Map(this.menu.map((card) => [card.id, card]));
    this.menu = offered(cards).map((card) => ({ ...before.get(card.id), ...card }));
  }

  #take(card) {
    const now = { ...this.menu.find(({ id }) => id === card.id), ...card };
    this.menu = this.menu.map((one) => (one.id === card.id ? now : one));
    if (card.id === this.#known.id) this.#know(now);
    return now;
  }

  #know(card, isNew = factsOf(card) !== factsOf(this.#known)) {
    this.#known = card;
    this.tell(this.menu.length ? stateOf(card) : card.id);
    this.drawn();
    if (isNew) for (const know of this.#followers) know(card);
  }

  async #find() {
    const card = await this.#read();
    this.#know(card, true);
    if (this.#isChanging()) this.watch();
    return card;
  }

  #isChanging() {
    return this.menu.some(({ state }) => CHANGING.includes(state));
  }

  async #read() {
    for (;;) {
      try {
        const { data } = await this.server.json("v1/models");
        if (data.length === 0) throw new ServerError(404, "This key may use none of the models.");
        this.#offer(data);
        const before = localStorage.getItem(this.place);
        const { id } = this.menu.find((card) => card.id === before) ?? data[0];
        return await this.server.json(pathOf(id));
      } catch (error) {
        if (!(error instanceof ServerError)) throw error;
        this.tell(error.message);
        if (error.status === 401) throw error;
      }
      await pause(RETRY_MS);
    }
  }
}
