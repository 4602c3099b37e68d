// The last steps as stacked bars: decode, prompt and draft rows.

import { fitted } from "./palette.js";

const MOST_STEPS = 80;
const HEIGHT = 140;
const LABELS = 14; // pixels above the bars
const LEAST = 3; // pixels of a part that is not 0: one row beside a chunk of a prompt stays in sight
export const PARTS = [
  { name: "decode", colour: "accent", pattern: "" },
  { name: "prompt", colour: "warm", pattern: "striped" },
  { name: "draft", colour: "good", pattern: "dotted" },
];

const rowsOf = (step) => PARTS.reduce((sum, { name }) => sum + step[name], 0);

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
    if (!step) return "No step yet.";
    const parts = PARTS.filter(({ name }) => step[name]).map(({ name }) => `${number(step[name])} ${name}`);
    const requests = step.sequences === 1 ? "1 request" : `${number(step.sequences)} requests`;
    const milliseconds = (1000 * step.seconds).toFixed(step.seconds < 0.01 ? 1 : 0);
    return `Step ${number(step.n)}: ${parts.join(" + ")} ${rows(rowsOf(step))} of ${requests}, ${milliseconds} ms.`;
  }
}

const number = (value) => value.toLocaleString("en");
const rows = (n) => (n === 1 ? "row" : "rows");

export function paintSteps(canvas, { list }, palette) {
  const width = canvas.clientWidth;
  const context = fitted(canvas, width, HEIGHT);
  const most = Math.max(1, ...list.map(rowsOf));
  const unit = (HEIGHT - LABELS - 1 - LEAST * PARTS.length) / most;
  const pitch = width / MOST_STEPS;
  const fills = PARTS.map(({ colour, pattern }) => palette.fill(context, palette[colour], pattern));
  list.forEach((step, i) => {
    let y = HEIGHT - 1;
    const x = width - (list.length - i) * pitch;
    PARTS.forEach(({ name, colour }, part) => {
      if (!step[name]) return;
      const height = Math.max(LEAST, step[name] * unit);
      context.fillStyle = fills[part];
      context.strokeStyle = palette[colour];
      context.fillRect(x, y - height, Math.max(1, pitch - 1.5), height);
      context.strokeRect(x + 0.5, y - height + 0.5, Math.max(1, pitch - 2.5), height - 1);
      y -= height;
    });
  });
  context.strokeStyle = palette.line;
  context.strokeRect(0, HEIGHT - 0.5, width, 0);
  context.fillStyle = palette.faint;
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "top";
  if (list.length) context.fillText(`highest: ${number(most)} ${rows(most)}`, 0, 0);
}
