// The last steps as stacked bars: decode, prompt and draft rows.

import { html } from "../html.js";

const MOST_STEPS = 80;
/** The kinds of rows, from the bottom of a bar to its top. */
export const PARTS = ["decode", "prompt", "draft"];

const rowsOf = (step) => PARTS.reduce((sum, name) => sum + step[name], 0);

/** The newest steps, as many as the chart shows. A new engine begins to count again. */
export class Steps {
  list = [];

  add(steps) {
    for (const step of steps) {
      const last = this.list.at(-1);
      if (last && step.n < last.n) this.list = [];
      if (!last || step.n !== last.n) this.list.push(step);
    }
    this.list.splice(0, this.list.length - MOST_STEPS);
  }

  /** The newest step in words. */
  get newest() {
    const step = this.list.at(-1);
    if (!step) return "No step since this page was opened.";
    const parts = PARTS.filter((name) => step[name]).map((name) => `${number(step[name])} ${name}`);
    const requests = step.sequences === 1 ? "1 request" : `${number(step.sequences)} requests`;
    const milliseconds = (1000 * step.seconds).toFixed(step.seconds < 0.01 ? 1 : 0);
    return `Step ${number(step.n)}: ${parts.join(" + ")} ${rows(rowsOf(step))} of ${requests}, ${milliseconds} ms.`;
  }
}

const number = (value) => value.toLocaleString("en");
const rows = (n) => (n === 1 ? "row" : "rows");

/** A bar a step, under the height of the highest. */
export function Chart({ list }) {
  const most = Math.max(1, ...list.map(rowsOf));
  const part = (step) => (name) =>
    step[name] > 0 && html`<div class="part ${name}" style=${{ height: `${(100 * step[name]) / most}%` }}></div>`;
  return html`<p class="faint">${list.length > 0 && `highest: ${number(most)} ${rows(most)}`}</p>
    <div class="chart" role="img" aria-label="Rows of the last steps">
      ${list.map((step) => html`<div key=${step.n}>${PARTS.map(part(step))}</div>`)}
    </div>`;
}
