// The picture as tables, for who cannot see it or wants the numbers.

import { element } from "../dom.js";
import { heldPages } from "./rings.js";
import { REASONS } from "./trouble.js";

const HEAD = [
  "Request",
  "State",
  "Prompt tokens",
  "From the cache",
  "Computed",
  "Generated",
  "Pages",
  "Shared pages",
  "Waits for",
];
const number = (value) => value.toLocaleString("en");
const sum = (values) => values.reduce((total, value) => total + value, 0);

const EVERY_MS = 1000; // a table that changes ten times a second cannot be read

/** A <details> whose table is rebuilt only while it is open. */
export class Table {
  #body = element("tbody");
  #note = element("p", { class: "faint" });
  #picture = null;
  #timer = 0;

  constructor() {
    const head = element(
      "tr",
      {},
      HEAD.map((name) => element("th", { scope: "col" }, name)),
    );
    const table = element(
      "table",
      {},
      element("caption", { class: "unseen" }, "Requests in the engine"),
      element("thead", {}, head),
      this.#body,
    );
    const scrolled = element(
      "div",
      { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Table of requests" },
      table,
    );
    this.box = element(
      "details",
      { ontoggle: () => this.#fill() },
      element("summary", {}, "As a table"),
      scrolled,
      this.#note,
    );
  }

  update(picture) {
    this.#picture = picture;
    this.#timer ||= setTimeout(() => {
      this.#timer = 0;
      this.#fill();
    }, EVERY_MS);
  }

  #fill() {
    if (!this.box.open || !this.#picture) return;
    const { sequences, left_out } = this.#picture;
    this.#body.replaceChildren(...sequences.map(row));
    this.#note.textContent = left_out
      ? `${number(left_out)} more requests are not listed.`
      : sequences.length
        ? ""
        : "No requests.";
  }
}

function row({ id, state, prompt, cached, computed, generated, pages = [], reason }) {
  const held = sum(pages.map(heldPages));
  const shared = sum(pages.map((table) => table.shared.length));
  const cells = [
    state,
    ...[prompt, cached, computed, generated, held, shared].map(number),
    reason ? (REASONS[reason] ?? reason) : "",
  ];
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, `#${id}`),
    cells.map((text) => element("td", {}, text)),
  );
}
