// The queue: who waits, and for what.

import { element } from "../dom.js";
import { runs } from "./rings.js";
import { REASONS } from "./trouble.js";

const MOST = 8;
const number = (value) => value.toLocaleString("en");

/** A list of the first waiting requests. */
export class Queue {
  box = element("ol", { class: "queue" });
  #shown = "";

  update({ sequences, waiting }) {
    const queued = sequences.filter((sequence) => !runs(sequence));
    const lines = queued.slice(0, MOST).map(describe);
    const n = Math.max(waiting, queued.length);
    if (n > lines.length) lines.push(`and ${number(n - lines.length)} more`);
    const shown = lines.join("\n");
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.box.replaceChildren(...lines.map((line) => element("li", {}, line)));
  }
}

function describe({ id, state, prompt, generated, reason }) {
  const what =
    state === "preempted" ? `preempted after ${number(generated)} tokens` : `a prompt of ${number(prompt)} tokens`;
  return `#${id}, ${what}, waits for ${reason ? (REASONS[reason] ?? reason) : "the next step"}`;
}
