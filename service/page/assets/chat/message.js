// One message on screen. `update` draws what has changed since the last time.

import { asCurl, asPython, CHAT } from "../code.js";
import { copyButton } from "../copy.js";
import { element } from "../dom.js";
import { Tokens } from "../tokens.js";
import { CallCard } from "./calls.js";
import { Markdown } from "./markdown.js";
import { costOf, endingOf } from "./ending.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };

const isWritten = ({ state }) => ["waiting", "writing"].includes(state);

export const quiet = (name, onclick, more = {}) =>
  element("button", { type: "button", class: "quiet", onclick, ...more }, name);

/** "‹ 2 / 3 ›": the alternatives of a message. */
function switcher(node, all, pick) {
  const at = all.findIndex(({ id }) => id === node.id);
  const step = (by, name, sign) =>
    quiet(sign, () => pick(all[at + by]), { "aria-label": name, title: name, disabled: !all[at + by] });
  return element(
    "span",
    { class: "switch", role: "group", "aria-label": "Versions" },
    step(-1, "Earlier version", "‹"),
    element("span", {}, `${at + 1} / ${all.length}`),
    step(1, "Later version", "›"),
  );
}

/** A message. `actions` is what the view does for its buttons. */
export class Message {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.body = element("div", { class: "body" });
    this.foot = element("div", { class: "foot" });
    this.root = element(
      "article",
      { class: `message ${node.role}` },
      element("h2", { class: "unseen" }, NAMES[node.role]),
      this.body,
      this.foot,
    );
    this.parts = node.role === "assistant" ? new Answer(this.body, node, actions) : null;
    if (!this.parts) this.#showText();
  }

  /** Draw the node. `all` are its alternatives, `running` says whether an answer of the conversation is written. */
  update(all, running) {
    const { node } = this;
    this.parts?.update(running);
    this.root.setAttribute("aria-busy", String(running && isWritten(node)));
    const state = JSON.stringify([
      all.map(({ id }) => id),
      running,
      node.state,
      Boolean(node.stats?.tokens),
      Boolean(node.content),
    ]);
    if (state === this.state || this.editing) return;
    this.state = state;
    this.foot.replaceChildren(...this.#buttons(all, running));
  }

  #showText() {
    const { node } = this;
    const images = (node.images ?? []).map((url, at) => element("img", { src: url, alt: `Image ${at + 1}` }));
    const label = node.role === "tool" ? element("div", { class: "label" }, "Result") : null;
    this.body.replaceChildren(
      ...[label, ...images, element("div", { class: "text", dir: "auto" }, node.content)].filter(Boolean),
    );
  }

  #buttons(all, running) {
    const { node, actions } = this;
    const buttons = [];
    if (all.length > 1) buttons.push(switcher(node, all, actions.pick));
    if (node.role === "user") buttons.push(quiet("Edit", () => this.#edit(), { disabled: running }));
    if (node.content) buttons.push(copyButton("Copy", () => node.content));
    if (node.role !== "assistant") return buttons;
    buttons.push(quiet("Regenerate", () => actions.regenerate(node), { disabled: running }));
    if (node.sent) {
      buttons.push(copyButton("Copy as curl", () => asCurl(actions.server, CHAT, actions.bodyOf(node))));
      buttons.push(copyButton("Copy as Python", () => asPython(actions.server, CHAT, actions.bodyOf(node))));
    }
    const cost = isWritten(node) ? null : costOf(node);
    return cost ? [element("span", { class: "cost", title: cost.more }, cost.text), ...buttons] : buttons;
  }

  #edit() {
    const { node, actions } = this;
    const text = element("textarea", { "aria-label": "Your text", rows: "3", dir: "auto" });
    text.value = node.content;
    const close = () => {
      this.editing = false;
      this.state = null;
      this.#showText();
      actions.redraw();
      this.foot.querySelector("button:not(.switch button)")?.focus();
    };
    const save = () => {
      close();
      actions.edit(node, text.value);
    };
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) save();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.editing = true;
    this.foot.replaceChildren(
      quiet("Cancel", close),
      element("button", { class: "main", onclick: save }, "Send again"),
    );
    this.body.replaceChildren(text);
    text.focus();
  }
}

/** The parts of an answer: thought, text or tokens, calls, and how it ended. */
class Answer {
  constructor(root, node, actions) {
    Object.assign(this, { node, actions, cards: [] });
    this.thought = new Markdown();
    this.summary = element("summary", {}, "Thought");
    this.thoughtBox = element("details", { class: "thought", hidden: true }, this.summary, this.thought.root);
    this.content = element("div", { class: "content" });
    this.calls = element("div", { class: "calls" });
    this.notice = element("p", { class: "notice" });
    this.ending = element("div", { class: "ending" });
    root.append(this.thoughtBox, this.content, this.calls, this.notice, this.ending);
  }

  update(running) {
    const { node } = this;
    this.thoughtBox.hidden = !node.thought;
    if (node.thought) this.thought.show(node.thought);
    this.summary.textContent = node.state === "writing" && !node.content ? "Thinks…" : "Thought";
    this.#showContent();
    this.#showCalls(running);
    this.notice.hidden = !running || node.state === "done" || !(node.notice || node.state === "waiting");
    this.notice.textContent = node.notice || "Waits for the first token.";
    this.#showEnding(running);
  }

  #showContent() {
    const { node } = this;
    const Kind = node.scores?.length && this.actions.scores() ? Tokens : Markdown;
    if (!(this.shown instanceof Kind)) {
      this.shown = new Kind();
      this.content.replaceChildren(this.shown.root);
    }
    this.shown.show(Kind === Tokens ? node.scores : node.content);
  }

  #showCalls(running) {
    const { node, actions } = this;
    for (const call of (node.calls ?? []).slice(this.cards.length)) {
      this.cards.push(new CallCard(call));
      this.calls.append(this.cards.at(-1).root);
    }
    const open = Boolean(this.cards.length) && node.state === "done" && !running && actions.isLast(node);
    for (const card of this.cards) card.update(open);
    if (open === Boolean(this.send)) return;
    this.send?.remove();
    this.send = open ? element("button", { class: "main", type: "button" }, "Send the results") : null;
    this.send?.addEventListener("click", () =>
      actions.sendResults(
        node,
        this.cards.map((card) => card.result),
      ),
    );
    if (this.send) this.calls.append(this.send);
  }

  #showEnding(running) {
    const { node, actions } = this;
    const ending = endingOf(node, running, actions.isLast(node));
    const key = JSON.stringify([ending, running]);
    if (key === this.key) return;
    this.key = key;
    this.ending.replaceChildren();
    this.ending.className = `ending ${ending?.kind ?? ""}`;
    if (!ending) return;
    const run = { Continue: actions.goOn, Retry: actions.retry };
    const buttons = ending.offers.map((name) =>
      element("button", { type: "button", onclick: () => run[name](node), disabled: running }, name),
    );
    this.ending.append(element("span", {}, ending.text), ...buttons);
  }
}
