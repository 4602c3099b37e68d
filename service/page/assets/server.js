// The server that sent this page. Addresses are relative to the page, so a prefix of a reverse proxy stays in them.

const KEY = "noria-key"; // in the tab's storage only: closing the tab forgets it

/** An answer that is no success. `status` is that of HTTP, 0 where no answer came. */
export class ServerError extends Error {
  constructor(status, message, param = null, retryAfter = null) {
    super(message);
    Object.assign(this, { status, param, retryAfter });
  }
}

/** Requests to the server, with the key of this tab. */
export class Server {
  /** `askForKey(message)` resolves to a key, or to null when the person has none. */
  constructor(askForKey) {
    this.askForKey = askForKey;
    this.base = new URL(".", document.baseURI);
    this.question = null; // one question at a time, however many requests need a key
  }

  get key() {
    return sessionStorage.getItem(KEY);
  }

  set key(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  }

  url(path) {
    return new URL(path, this.base).href;
  }

  /**
   * The response to a request, once it is a success, and when the request was sent: a person may have typed a key
   * before. Throws ServerError, or AbortError from `signal`.
   */
  async #answered(path, { method = "GET", body = null, signal = null, headers: own = {} } = {}) {
    for (;;) {
      const key = this.key;
      const headers = { ...own };
      if (key) headers.authorization = `Bearer ${key}`;
      const isForm = body instanceof FormData; // the browser then names the boundary
      if (body !== null && !isForm) headers["content-type"] = "application/json";
      const sent = performance.now();
      const content = isForm ? body : body && JSON.stringify(body);
      const response = await this.#send(path, { method, headers, signal, body: content });
      if (response.ok) return { response, sent };
      const error = await failure(response);
      if (response.status !== 401) throw error;
      if (this.key !== key) continue; // another request has got a key meanwhile
      const answer = await this.#newKey(key ? "The server does not know this key." : "");
      if (answer === null) throw new ServerError(401, "This server needs a key.");
    }
  }

  async json(path, options) {
    return (await this.#answered(path, options)).response.json();
  }

  /** The events of a stream as {data, sent}: its text, and when the request was sent. Comments are left out. */
  async *events(path, options) {
    const { response, sent } = await this.#answered(path, options);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(); // EventSource sends no key or body
    let rest = "";
    try {
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const frames = (rest + part.value).split("\n\n");
        rest = frames.pop();
        for (const frame of frames) {
          const data = frame.split("\n").filter((line) => line.startsWith("data: "));
          if (data.length) yield { data: data.map((line) => line.slice(6)).join("\n"), sent };
        }
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  async #send(path, options) {
    try {
      return await fetch(this.url(path), options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError(0, "The server does not answer. It may be stopping or starting.");
    }
  }

  #newKey(message) {
    this.question ??= this.askForKey(message).then((key) => {
      this.question = null;
      if (key !== null) this.key = key;
      return key;
    });
    return this.question;
  }
}

async function failure(response) {
  const retryAfter = Number(response.headers.get("retry-after")) || null;
  try {
    const { error } = await response.json();
    return new ServerError(response.status, error.message, error.param ?? null, retryAfter);
  } catch {
    return new ServerError(response.status, `The server answered with status ${response.status}.`, null, retryAfter);
  }
}
