// The chat view: joins the list of conversations, the branch on screen, the text box and the settings.

import { readFields } from "../fields.js";
import { html, render, touches } from "../html.js";
import { COLOURS } from "../tokens.js";
import { Composer } from "./composer.js";
import { addNode, choose, newConversation, pathTo, titleOf } from "./conversation.js";
import { announced } from "./ending.js";
import { History } from "./history.js";
import { bodyOf, NAMES } from "./request.js";
import { Session } from "./session.js";
import { Settings } from "./settings.js";
import { Store } from "./store.js";
import { Thread } from "./thread.js";

const CURRENT = "noria-conversation"; // in the tab's storage: a reload opens the same conversation
const WIDE = "(min-width: 64rem)";

/** Fill `root`. `context` has `server` (server.js) and `model` (model.js). */
export function mount(root, context) {
  const view = new View(root, context);
  return { shown: () => view.shown(), hidden: () => view.hidden() };
}

/** What is on screen. Each change of it is followed by `draw`. */
class View {
  conversation = newConversation();
  saved = false;
  follows = true; // whether the thread is scrolled to its end
  problem = ""; // a line above the conversation
  status = ""; // for a screen reader
  card = {};
  fields = [];

  constructor(root, { server, model }) {
    Object.assign(this, { root, server });
    const name = `noria-chat${server.base.pathname}`;
    this.store = new Store(name, { onChange: (change) => this.#follow(change), onError: (text) => this.tell(text) });
    this.session = new Session({ server, model, store: this.store, drawn: (...what) => this.#drawn(...what) });
    const wide = matchMedia(WIDE);
    this.panels = { history: wide.matches, settings: false };
    wide.addEventListener("change", () => this.toggle("history", wide.matches));
    document.addEventListener("keydown", (event) => this.#escape(event));
    this.draw();
    model.follow((card) => this.#know(card));
    this.#start();
  }

  get head() {
    return this.conversation.head;
  }

  get running() {
    return this.session.running(this.conversation);
  }

  shown() {
    this.isShown = true;
    this.draw();
    this.#focus();
  }

  hidden() {
    this.isShown = false;
    document.title = "Noria";
  }

  /** Show a line above the conversation until the person closes it. */
  tell(text) {
    this.problem = text;
    this.draw();
  }

  draw() {
    const { head, running, panels, card, fields } = this;
    if (this.isShown) document.title = head.title ? `${head.title} · Noria` : "Chat · Noria";
    const panelButton = (name, title) =>
      html`<button type="button" id="${name}-button" aria-controls="chat-${name}" aria-expanded=${panels[name]}
        onclick=${() => this.toggle(name)}>${title}</button>`;
    const chat = html`<div class="chat">
      <${History} view=${this} hidden=${!panels.history} />
      <div class="middle">
        <div class="bar">
          ${panelButton("history", "History")}
          <button type="button" onclick=${() => this.fresh()}>New chat</button>
          <span class="space"></span>
          <button type="button" aria-pressed=${head.scores} onclick=${() => this.change({ scores: !head.scores })}
            title="Colour the tokens of answers by their probability">Probabilities</button>
          ${panelButton("settings", "Settings")}
        </div>
        <p class="hint colours" hidden=${!head.scores}>${COLOURS}</p>
        <div class="alert" hidden=${!this.problem}>
          <span role="alert">${this.problem}</span>
          <button type="button" class="quiet" onclick=${() => this.tell("")}>Dismiss</button>
        </div>
        <${Thread} view=${this} running=${running} />
        <${Composer} view=${this} card=${card} running=${running} />
        <p class="unseen" role="status">${this.status}</p>
      </div>
      <${Settings} view=${this} fields=${fields} card=${card} hidden=${!panels.settings} />
    </div>`;
    render(chat, this.root);
  }

  async #start() {
    await this.session.restore();
    const current = sessionStorage.getItem(CURRENT) ?? "";
    const loaded = this.session.live(current) ?? (await this.store.load(current));
    if (loaded && !this.saved && !this.conversation.nodes.size) this.#put(loaded);
    else this.history.refresh();
  }

  async #know(card) {
    this.card = card;
    try {
      const fields = await readFields(this.server, "/v1/chat/completions", NAMES, card);
      if (card !== this.card) return; // another model is chosen by now
      this.fields = fields;
      this.draw();
    } catch (error) {
      this.tell(`The parameters cannot be displayed: ${error.message}`);
    }
  }

  /** Put a conversation on screen. */
  #put(conversation) {
    Object.assign(this, { conversation, saved: true, follows: true });
    sessionStorage.setItem(CURRENT, this.head.id);
    this.history.refresh();
    if (!matchMedia(WIDE).matches) this.panels.history = false;
    this.draw();
  }

  #drawn(conversation, node) {
    if (conversation !== this.conversation) return;
    if (node) this.status = this.running ? "The answer is being written." : announced(node);
    this.draw();
  }

  #focus() {
    this.root.querySelector("#chat-input").focus();
  }

  /** The button that was used is gone. On a phone the text box would bring up the keyboard. */
  #refocus() {
    if (!touches()) this.#focus();
  }

  toggle(name, shown = !this.panels[name]) {
    const leaves = !shown && this.root.querySelector(`#chat-${name}`).contains(document.activeElement);
    this.panels[name] = shown;
    this.draw();
    if (leaves) this.root.querySelector(`#${name}-button`).focus();
  }

  #escape(event) {
    if (event.key !== "Escape" || event.isComposing || !this.isShown || document.querySelector("dialog[open]")) return;
    if (this.running) return this.stop();
    const panel = event.target.closest("aside");
    if (panel) this.toggle(panel.id.replace("chat-", ""), false);
  }

  // ---- what the person does in a conversation

  /** Add a message and ask for its answer. Returns whether it was taken. */
  send(content, images = []) {
    return !this.running && this.#append(this.head.leaf, [{ role: "user", content, images }]);
  }

  /** Whether the settings are right; says what is wrong, and moves the focus there. */
  #mayAsk() {
    const wrong = this.root.querySelector("#chat-settings [aria-invalid=true]");
    if (wrong) this.panels.settings = true;
    this.tell(wrong ? this.root.querySelector(`#${wrong.id}-error`).textContent : "");
    wrong?.focus();
    return !wrong;
  }

  /** Add messages in a row below `parent`, and an answer after them. Returns whether the settings are right. */
  #append(parent, contents) {
    if (!this.#mayAsk()) return false;
    const { conversation, head } = this;
    head.title ||= titleOf(contents[0].content);
    const added = [];
    for (const content of [...contents, { role: "assistant", content: "", state: "waiting" }]) {
      added.push(addNode(conversation, added.at(-1)?.id ?? parent, content));
    }
    this.follows = true;
    this.session.write(conversation, added.at(-1));
    this.#refocus();
    this.#save(added);
    return true;
  }

  async #save(nodes) {
    const { conversation, head, saved } = this;
    head.updated = Date.now();
    this.saved = true;
    if (!saved) sessionStorage.setItem(CURRENT, head.id);
    const { leaf, updated, title } = head;
    await this.session.saving(head, nodes, () =>
      saved ? this.store.patch(head.id, { leaf, updated, title }, nodes) : this.store.add(conversation),
    );
    this.history.refresh();
  }

  /** The words of a recording in a data URL, piece by piece. An error is told, and ends them. */
  async *transcript(url) {
    const form = new FormData();
    const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
    form.append("file", new File([bytes], "recording"));
    form.append("model", this.card.id);
    form.append("stream", "true");
    try {
      for await (const { data } of this.server.events("v1/audio/transcriptions", { method: "POST", body: form })) {
        const { type, delta, error } = JSON.parse(data);
        if (error) throw new Error(error.message);
        if (type === "transcript.text.delta") yield delta;
      }
    } catch (error) {
      this.tell(error.message);
    }
  }

  stop() {
    this.session.stop(this.head.id);
    this.#refocus();
  }

  /** Change fields of the head. */
  change(changes) {
    Object.assign(this.head, changes);
    this.draw();
    if (this.saved) this.store.patch(this.head.id, changes);
  }

  bodyOf(node) {
    return bodyOf(node.sent, pathTo(this.conversation, node.parent));
  }

  edit({ parent, images }, content) {
    this.#append(parent, [{ role: "user", content, images }]);
  }

  regenerate({ parent }) {
    this.#append(parent, []);
  }

  sendResults({ id }, results) {
    this.#append(
      id,
      results.map((result) => ({ role: "tool", ...result })),
    );
  }

  /** Ask again: in place of an answer without text, beside one with text. */
  retry(node) {
    if (node.content || node.thought || node.calls?.length) return this.regenerate(node);
    this.#write(node, null);
  }

  goOn(node) {
    const { content, thought = "", scores, stats } = node;
    this.#write(node, { content, thought, scores, stats });
  }

  #write(node, continued) {
    if (!this.#mayAsk()) return;
    this.session.write(this.conversation, node, continued);
    this.#refocus();
  }

  /** Put the branch of another version on screen. The next switch is one key away. */
  pick(node) {
    choose(this.conversation, node);
    this.draw();
    this.root.querySelector(`#message-${node.id} .switch button:enabled`)?.focus();
    this.store.patch(this.head.id, { leaf: this.head.leaf });
  }

  // ---- what the person does in the list

  fresh() {
    this.#put(newConversation(this.head));
    this.saved = false;
    sessionStorage.removeItem(CURRENT);
    this.#focus();
  }

  async open(id) {
    const conversation = this.session.live(id) ?? (await this.store.load(id));
    if (conversation) this.#put(conversation);
  }

  async rename(id, title) {
    if (id === this.head.id) this.head.title = title;
    await this.store.patch(id, { title });
    this.draw();
    this.history.refresh();
  }

  async remove(id) {
    this.session.stop(id);
    await this.store.remove(id);
    if (id === this.head.id) this.fresh();
    this.history.refresh();
  }

  // ---- what other tabs do

  async #follow({ id, removed }) {
    this.history.refresh();
    if (id !== this.head.id || this.running) return;
    if (removed) {
      this.fresh();
      this.tell("This conversation was deleted in another tab.");
      return;
    }
    const loaded = await this.store.load(id);
    if (!loaded || id !== this.head.id || this.running) return;
    this.#merge(loaded);
  }

  /** Take what is new, but for messages of which this tab has a newer state. */
  #merge(loaded) {
    const { head, nodes } = this.conversation;
    for (const node of loaded.nodes.values()) if (!this.session.owns(node)) nodes.set(node.id, node);
    Object.assign(head, loaded.head, { leaf: head.leaf });
    choose(this.conversation, nodes.get(head.leaf) ?? [...nodes.values()].at(-1));
    this.draw();
  }
}
