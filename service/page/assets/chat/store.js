// Conversations in the browser's storage: one record a conversation and one a message. Tabs write only records that
// they change, inside transactions, so that no tab overwrites another's messages.

const VERSION = 1;

/** A promise of an IndexedDB request's result. */
const result = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function explain(error) {
  if (error?.name === "QuotaExceededError") {
    return "The browser's storage is full. Export or delete conversations: what comes now is lost with the tab.";
  }
  return `The browser does not store this conversation (${error?.message || error}). It is lost with the tab.`;
}

/** The storage. `onChange({id, removed})` follows changes of other tabs, `onError(text)` failures. */
export class Store {
  constructor(name, { onChange, onError }) {
    this.onError = onError;
    this.channel = new BroadcastChannel(name);
    this.channel.onmessage = ({ data }) => onChange(data);
    this.database = this.#opened(name);
    this.database.catch((error) => this.onError(explain(error)));
  }

  /** @returns {Promise<import("./conversation.js").Head[]>} the newest first */
  async heads() {
    const heads = await this.#read((of) => result(of("heads").getAll()), []);
    return heads.sort((one, other) => other.updated - one.updated);
  }

  /** @returns {Promise<import("./conversation.js").Conversation | null>} */
  async load(id) {
    const [head, nodes] = await this.#read(
      (of) => Promise.all([result(of("heads").get(id)), result(of("nodes").index("conversation").getAll(id))]),
      [],
    );
    return head ? { head, nodes: new Map(nodes.map((node) => [node.id, node])) } : null;
  }

  /** The ids of conversations with `text` in their title or in a message. */
  async search(text) {
    const wanted = text.toLowerCase();
    const has = (found) => found.toLowerCase().includes(wanted);
    const [heads, nodes] = await this.#read(
      (of) => Promise.all([result(of("heads").getAll()), result(of("nodes").getAll())]),
      [[], []],
    );
    const titles = heads.filter((head) => has(head.title)).map((head) => head.id);
    return new Set([...titles, ...nodes.filter((node) => has(node.content)).map((node) => node.conversation)]);
  }

  /** Add a conversation with its nodes. */
  async add({ head, nodes }) {
    await this.#write(head.id, (of) => {
      of("heads").put(head);
      for (const node of nodes.values()) of("nodes").put(node);
    });
  }

  /** Change fields of a head and put nodes. A conversation that another tab has deleted stays deleted. */
  async patch(id, changes, nodes = []) {
    await this.#write(id, async (of) => {
      const head = await result(of("heads").get(id));
      if (!head) return;
      of("heads").put({ ...head, ...changes });
      for (const node of nodes) of("nodes").put(node);
    });
  }

  async putNode(node) {
    await this.#write(node.conversation, async (of) => {
      if (await result(of("heads").getKey(node.conversation))) of("nodes").put(node);
    });
  }

  async remove(id) {
    const work = async (of) => {
      of("heads").delete(id);
      for (const key of await result(of("nodes").index("conversation").getAllKeys(id))) of("nodes").delete(key);
    };
    await this.#write(id, work, true);
  }

  async #opened(name) {
    const request = indexedDB.open(name, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("heads", { keyPath: "id" });
      request.result.createObjectStore("nodes", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    return result(request);
  }

  async #transaction(mode, work) {
    const transaction = (await this.database).transaction(["heads", "nodes"], mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    const [value] = await Promise.all([work((name) => transaction.objectStore(name)), done]);
    return value;
  }

  async #read(work, otherwise) {
    try {
      return await this.#transaction("readonly", work);
    } catch (error) {
      this.onError(explain(error));
      return otherwise;
    }
  }

  async #write(id, work, removed = false) {
    try {
      await this.#transaction("readwrite", work);
      this.channel.postMessage({ id, removed });
    } catch (error) {
      this.onError(explain(error));
    }
  }
}
