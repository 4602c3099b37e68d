// The branch on screen. It follows the end of the text until the person scrolls away.

import { element } from "../dom.js";
import { pathTo, siblings } from "./conversation.js";
import { Message } from "./message.js";

const NEAR = 48; // pixels from the bottom that count as being there
const EXAMPLES = [
  "What is the capital of Japan?",
  "Write a Python function that says whether a number is prime.",
  "Explain in three sentences why the sky is blue.",
];

export class Thread {
  constructor(actions) {
    this.actions = actions;
    this.messages = [];
    this.follows = true;
    this.list = element("div", { class: "messages", role: "log", "aria-label": "Conversation", "aria-live": "off" });
    this.empty = this.#emptyState();
    this.latest = element(
      "button",
      { type: "button", class: "latest", hidden: true, onclick: () => this.toEnd() },
      "↓ Latest",
    );
    this.scroller = element("div", { class: "scroller", tabindex: "-1" }, this.empty, this.list);
    this.root = element("div", { class: "thread" }, this.scroller, this.latest);
    this.scroller.addEventListener("scroll", () => this.#look());
    const observer = new ResizeObserver(() => this.#keepUp());
    for (const watched of [this.list, this.scroller]) observer.observe(watched);
  }

  /** Draw the branch. Messages that are on screen already stay. */
  show(conversation, running) {
    const path = pathTo(conversation);
    let same = 0;
    while (same < path.length && this.messages[same]?.node === path[same]) same++;
    for (const { root } of this.messages.splice(same)) root.remove();
    for (const node of path.slice(same)) {
      this.messages.push(new Message(node, this.actions));
      this.list.append(this.messages.at(-1).root);
    }
    this.empty.hidden = path.length > 0;
    for (const message of this.messages) message.update(siblings(conversation, message.node), running);
    this.#keepUp();
  }

  /** Draw the last message alone: it is the one that grows. */
  showLast(conversation) {
    const last = this.messages.at(-1);
    last?.update(siblings(conversation, last.node), true);
    this.#keepUp();
  }

  /** After a switch to another version: the next switch is one key away. */
  focusVersions(node) {
    const message = this.messages.find((one) => one.node === node);
    message?.foot.querySelector(".switch button:enabled")?.focus();
  }

  toEnd() {
    this.follows = true;
    this.#keepUp();
  }

  #keepUp() {
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#look();
  }

  #look() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    this.follows = scrollHeight - scrollTop - clientHeight < NEAR;
    this.latest.hidden = this.follows;
  }

  #emptyState() {
    const buttons = EXAMPLES.map((text) =>
      element("button", { type: "button", class: "example", onclick: () => this.actions.send(text) }, text),
    );
    const hint = element("p", {}, "Conversations stay in this browser. Or start with one of these:");
    return element("div", { class: "empty" }, element("h2", {}, "Ask the model anything"), hint, ...buttons);
  }
}
