// The chat view: joins the list of conversations, the branch on screen, the text box and the settings.

import { Composer } from "./composer.js";
import { addNode, choose, newConversation, pathTo, titleOf } from "./conversation.js";
import { announced } from "./ending.js";
import { History } from "./history.js";
import { layout } from "./layout.js";
import { bodyOf } from "./request.js";
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

class View {
  constructor(root, { server, model }) {
    this.server = server;
    this.conversation = newConversation();
    this.saved = false;
    const name = `noria-chat${server.base.pathname}`;
    this.store = new Store(name, { onChange: (change) => this.#follow(change), onError: (text) => this.tell(text) });
    this.session = new Session({ server, model, store: this.store, drawn: (...what) => this.#drawn(...what) });
    this.thread = new Thread(this.#threadActions());
    this.composer = new Composer({
      send: (text, images) => this.#send(text, images),
      stop: () => this.#stop(),
      tell: (text) => this.tell(text),
    });
    this.settings = new Settings(server, {
      changed: (changes) => this.#change(changes),
      closed: () => this.#toggle(this.settings.root, this.settingsButton, false),
    });
    this.history = new History(this.store, this.#historyActions());
    this.#build(root);
    model.follow((card) => this.#know(card));
    this.#start();
  }

  shown() {
    this.isShown = true;
    this.#title();
    this.composer.focus();
  }

  hidden() {
    this.isShown = false;
    document.title = "Noria";
  }

  /** Show a line above the conversation until the person closes it. */
  tell(text) {
    this.alert.textContent = text;
    this.alertBox.hidden = !text;
  }

  #build(root) {
    Object.assign(
      this,
      layout(this, {
        history: () => this.#toggle(this.history.root, this.historyButton),
        settings: () => this.#toggle(this.settings.root, this.settingsButton),
        scores: () => this.#toggleScores(),
        fresh: () => this.#fresh(),
        dismiss: () => this.tell(""),
      }),
    );
    root.append(this.chat);
    const wide = matchMedia(WIDE);
    this.#toggle(this.history.root, this.historyButton, wide.matches);
    wide.addEventListener("change", () => this.#toggle(this.history.root, this.historyButton, wide.matches));
    this.#toggle(this.settings.root, this.settingsButton, false);
    document.addEventListener("keydown", (event) => this.#escape(event));
  }

  async #start() {
    await this.session.restore();
    const loaded = await this.store.load(sessionStorage.getItem(CURRENT) ?? "");
    if (loaded && !this.saved && !this.conversation.nodes.size) this.#open(loaded);
    else this.#draw();
    this.history.refresh(this.conversation.head.id);
  }

  async #know(card) {
    this.card = card;
    this.composer.know(card);
    try {
      await this.settings.know(card);
    } catch (error) {
      this.tell(`The parameters cannot be shown: ${error.message}`);
    }
  }

  // ---- what is on screen

  #open(conversation) {
    this.conversation = conversation;
    this.saved = true;
    sessionStorage.setItem(CURRENT, conversation.head.id);
    this.thread.follows = true;
    this.#draw();
    this.history.refresh(conversation.head.id);
    if (!matchMedia(WIDE).matches) this.#toggle(this.history.root, this.historyButton, false);
  }

  #fresh() {
    this.#open(newConversation(this.conversation.head.scores));
    this.saved = false;
    sessionStorage.removeItem(CURRENT);
    this.composer.focus();
  }

  #draw() {
    const running = this.session.running(this.conversation);
    this.settings.show(this.conversation.head);
    this.scoresButton.setAttribute("aria-pressed", String(this.conversation.head.scores));
    this.colours.hidden = !this.conversation.head.scores;
    this.#drawThread(running);
  }

  #drawThread(running) {
    this.thread.show(this.conversation, running);
    this.composer.setRunning(running);
    this.#title();
  }

  #drawn(conversation, whole, node) {
    if (conversation !== this.conversation) return;
    if (!whole) return this.thread.showLast(conversation);
    const running = this.session.running(conversation);
    this.#drawThread(running);
    this.status.textContent = running ? "The answer is being written." : announced(node);
  }

  #title() {
    const { title } = this.conversation.head;
    if (this.isShown) document.title = title ? `${title} · Noria` : "Chat · Noria";
  }

  #toggle(panel, button, shown = panel.hidden) {
    panel.hidden = !shown;
    button.setAttribute("aria-expanded", String(shown));
    if (shown || !panel.contains(document.activeElement)) return;
    button.focus();
  }

  #escape(event) {
    if (event.key !== "Escape" || event.isComposing || !this.isShown || document.querySelector("dialog[open]")) return;
    if (this.session.running(this.conversation)) this.#stop();
    else if (this.settings.root.contains(event.target)) this.#toggle(this.settings.root, this.settingsButton, false);
    else if (this.history.root.contains(event.target)) this.#toggle(this.history.root, this.historyButton, false);
  }

  // ---- what the person does

  /** Add a message and ask for its answer. Returns whether it was taken. */
  #send(text, images = []) {
    if (this.session.running(this.conversation)) return false;
    const { conversation } = this;
    if (!this.#mayAsk()) return false;
    conversation.head.title ||= titleOf(text);
    this.#append(conversation.head.leaf, [{ role: "user", content: text, images }]);
    return true;
  }

  /** Whether the settings are right; says what is wrong. */
  #mayAsk() {
    const wrong = this.settings.complain();
    this.tell(wrong ?? "");
    if (wrong) this.settingsButton.setAttribute("aria-expanded", "true");
    return !wrong;
  }

  /** Add messages in a row below `parent`, and an answer after them. */
  async #append(parent, contents) {
    const { conversation } = this;
    const added = [];
    for (const content of [...contents, { role: "assistant", content: "", state: "waiting" }]) {
      added.push(addNode(conversation, added.at(-1)?.id ?? parent, content));
    }
    this.thread.follows = true;
    const written = this.session.write(conversation, added.at(-1));
    this.#refocus();
    await this.#save(added);
    await written;
  }

  async #save(nodes) {
    const { head } = this.conversation;
    head.updated = Date.now();
    const created = !this.saved;
    this.saved = true;
    if (created) sessionStorage.setItem(CURRENT, head.id);
    const { leaf, updated, title } = head;
    await this.session.saving(head, nodes, () =>
      created ? this.store.add(this.conversation) : this.store.patch(head.id, { leaf, updated, title }, nodes),
    );
    this.history.refresh(head.id);
  }

  #stop() {
    this.session.stop(this.conversation.head.id);
    this.#refocus();
  }

  #change(changes) {
    Object.assign(this.conversation.head, changes);
    if (this.saved) this.store.patch(this.conversation.head.id, changes);
  }

  #toggleScores() {
    this.#change({ scores: !this.conversation.head.scores });
    this.#draw();
  }

  #threadActions() {
    return {
      server: this.server,
      send: (text) => this.#send(text),
      scores: () => this.conversation.head.scores,
      isLast: (node) => this.conversation.head.leaf === node.id,
      redraw: () => this.#drawThread(this.session.running(this.conversation)),
      bodyOf: (node) => bodyOf(node.sent, pathTo(this.conversation, node.parent)),
      edit: (node, text) =>
        this.#mayAsk() && this.#append(node.parent, [{ role: "user", content: text, images: node.images }]),
      regenerate: (node) => this.#mayAsk() && this.#append(node.parent, []),
      retry: (node) => this.#retry(node),
      goOn: (node) => this.#goOn(node),
      sendResults: (node, results) =>
        this.#mayAsk() &&
        this.#append(
          node.id,
          results.map((result) => ({ role: "tool", ...result })),
        ),
      pick: (node) => {
        choose(this.conversation, node);
        this.#drawThread(this.session.running(this.conversation));
        this.thread.focusVersions(node);
        this.store.patch(this.conversation.head.id, { leaf: this.conversation.head.leaf });
      },
    };
  }

  /** Ask again: in place of an answer without text, beside one with text. */
  #retry(node) {
    if (!this.#mayAsk()) return;
    if (node.content || node.thought || node.calls?.length) this.#append(node.parent, []);
    else this.session.write(this.conversation, node);
    this.#refocus();
  }

  #goOn(node) {
    if (!this.#mayAsk()) return;
    this.session.write(this.conversation, node, { content: node.content, thought: node.thought ?? "" });
    this.#refocus();
  }

  /** The button that was used is gone. On a phone the text box would bring up the keyboard. */
  #refocus() {
    if (matchMedia("(hover: hover)").matches) this.composer.focus();
  }

  #historyActions() {
    return {
      open: async (id) => {
        const conversation = this.session.live(id) ?? (await this.store.load(id));
        if (conversation) this.#open(conversation);
      },
      rename: async (id, title) => {
        if (id === this.conversation.head.id) this.conversation.head.title = title;
        await this.store.patch(id, { title });
        this.#title();
        this.history.refresh();
      },
      remove: async (id) => {
        this.session.stop(id);
        await this.store.remove(id);
        if (id === this.conversation.head.id) this.#fresh();
        this.history.refresh();
      },
      live: (id) => this.session.live(id),
      fields: () => this.settings.fields,
      tell: (text) => this.tell(text),
      close: () => this.#toggle(this.history.root, this.historyButton, false),
    };
  }

  /** Another tab has changed a conversation. */
  async #follow({ id, removed }) {
    this.history.refresh();
    if (id !== this.conversation.head.id || this.session.running(this.conversation)) return;
    if (removed) {
      this.#fresh();
      this.tell("This conversation was deleted in another tab.");
      return;
    }
    const loaded = await this.store.load(id);
    if (!loaded || id !== this.conversation.head.id || this.session.running(this.conversation)) return;
    this.#merge(loaded);
  }

  /** Take what is new; messages that did not change stay the same objects, so that they are not drawn again. */
  #merge(loaded) {
    const { head, nodes } = this.conversation;
    for (const node of loaded.nodes.values()) {
      const known = nodes.get(node.id);
      const same = known && known.content === node.content && known.state === node.state;
      if (!same && !this.session.owns(node)) nodes.set(node.id, node);
    }
    Object.assign(head, loaded.head, { leaf: head.leaf });
    choose(this.conversation, nodes.get(head.leaf) ?? [...nodes.values()].at(-1));
    this.#drawThread(false);
  }
}
