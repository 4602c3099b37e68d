// A text as its tokens, coloured by probability. Pointing at a token, or moving to it by keyboard, shows what else
// the model might have written.

import { element } from "./dom.js";

const LEVELS = [0.9, 0.6, 0.3, 0.1]; // above the first: no colour
/** What the colours mean. */
export const COLOURS =
  "Probability of each token: from 90 % without colour, from 60 % green, from 30 % yellow, from 10 % orange, below red.";

const percent = (logprob) => {
  if (logprob === null) return "no probability"; // the first token of a text follows nothing
  const value = 100 * Math.exp(logprob);
  return `${value >= 10 ? Math.round(value) : value >= 0.01 ? value.toPrecision(2) : "<0.01"} %`;
};
const quoted = (text) => `“${text.replaceAll("\n", "⏎").replaceAll("\t", "⇥")}”`;

function level(logprob) {
  if (logprob === null) return 0;
  const index = LEVELS.findIndex((least) => Math.exp(logprob) >= least);
  return index < 0 ? LEVELS.length : index;
}

function describe({ token, logprob, top }) {
  const others = top.filter(([name]) => name !== token).map(([name, own]) => `${quoted(name)} ${percent(own)}`);
  return `${quoted(token)} ${percent(logprob)}${others.length ? `; else ${others.join(", ")}` : ""}`;
}

const GAP = 8; // pixels between the tip and the edge of the window
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** The tokens in an element. It is one stop of the Tab key; the arrow keys move inside. */
export class Tokens {
  constructor() {
    this.scores = [];
    this.list = element("div", { class: "tokens", role: "listbox", "aria-label": "Tokens and their probabilities" });
    this.tip = element("div", { class: "tip", role: "tooltip", popover: "manual" }); // above all boxes
    this.root = element("div", { class: "token-box" }, this.list, this.tip);
    this.list.addEventListener("pointerover", ({ target }) => this.#tell(target));
    this.list.addEventListener("focusin", ({ target }) => this.#tell(target));
    this.root.addEventListener("pointerleave", () => this.#hide());
    this.list.addEventListener("focusout", () => this.#hide());
    this.list.addEventListener("keydown", (event) => this.#move(event));
  }

  show(scores) {
    for (const score of scores.slice(this.scores.length)) this.#add(score);
  }

  #add(score) {
    const shown = (score.shown || "·").replaceAll("\n", "⏎\n");
    const attributes = {
      class: `token level-${level(score.logprob)}`,
      role: "option",
      "aria-label": describe(score),
      "aria-selected": "false",
      tabindex: this.scores.length ? "-1" : "0",
      "data-index": this.scores.length,
    };
    this.scores.push(score);
    this.list.append(element("span", attributes, shown));
  }

  #move(event) {
    const { children } = this.list;
    const index = Number(event.target.dataset.index);
    const ends = { Home: 0, End: children.length - 1 };
    if (event.key === "Escape" && this.tip.matches(":popover-open")) {
      event.stopPropagation();
      return this.#hide();
    }
    const next = children[event.key in STEPS ? index + STEPS[event.key] : ends[event.key]];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #tell(target) {
    const score = this.scores[target.dataset?.index];
    if (!score) return;
    const rows = score.top.some(([name]) => name === score.token)
      ? score.top
      : [[score.token, score.logprob], ...score.top];
    const cells = rows.map(([name, logprob]) => {
      const own = name === score.token ? "own" : null;
      return element("div", { class: own }, element("span", {}, quoted(name)), element("span", {}, percent(logprob)));
    });
    this.tip.replaceChildren(...cells);
    this.tip.showPopover();
    this.#place(target);
  }

  /** Put the tip below the token, or above it where the window ends. */
  #place(target) {
    const token = target.getClientRects()[0] ?? target.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const below = token.bottom + height < innerHeight;
    this.tip.style.left = `${Math.max(0, Math.min(token.left, innerWidth - width - GAP))}px`;
    this.tip.style.top = `${below ? token.bottom + 2 : token.top - height - 2}px`;
  }

  #hide() {
    this.tip.hidePopover();
  }
}
