// The queue: who waits, and for what.

import { html } from "../html.js";
import { runs } from "./rings.js";
import { called, wordsOf } from "./states.js";

const MOST = 8;
const number = (value) => value.toLocaleString("en");

/** A list of the first waiting requests. */
export function Queue({ picture: { sequences, waiting }, names }) {
  const queued = sequences.filter((sequence) => !runs(sequence));
  const lines = queued.slice(0, MOST).map((sequence) => describe(sequence, names));
  const n = Math.max(waiting, queued.length);
  if (n > lines.length) lines.push(`and ${number(n - lines.length)} more`);
  return html`<ol class="queue">${lines.map((line) => html`<li>${line}</li>`)}</ol>`;
}

function describe({ id, state, prompt, generated, reason }, names) {
  const what =
    state === "preempted" ? `preempted after ${number(generated)} tokens` : `a prompt of ${number(prompt)} tokens`;
  return `${called(names, id)}, ${what}, waits for ${reason ? wordsOf(reason) : "the next step"}`;
}
