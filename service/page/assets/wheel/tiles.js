// The numbers of the engine, each with what it means.

import { html } from "../html.js";

const whole = (value) => Math.round(value).toLocaleString("en");
const share = (part, all) => (all ? `${Math.round((100 * part) / all)} %` : "–");

function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${whole(1000 * value)} ms` : `${value.toFixed(1)} s`;
}

function kept({ proposed, accepted, drafters }) {
  return proposed ? `${share(accepted, proposed)} (${drafters.join(", ").replaceAll("_", " ")})` : "–";
}

const TILES = [
  ["Running", "Requests in the batch now", ({ running }) => whole(running)],
  ["Waiting", "Requests in the queue", ({ waiting }) => whole(waiting)],
  ["Tokens/s", "Tokens generated a second, for all requests together", (p) => whole(p.tokens_per_second)],
  ["Prompt tokens/s", "Prompt tokens computed a second", (p) => whole(p.prompt_tokens_per_second)],
  ["First token", "From the arrival of the latest request to its first token (TTFT)", (p) => seconds(p.ttft_seconds)],
  ["In the queue", "How long the latest request waited for its first step", (p) => seconds(p.queue_seconds)],
  ["Preemptions", "How often a request lost its pages because there were too few", (p) => whole(p.preemptions)],
  ["Prefix hits", "Prompt tokens that were found in the KV cache", ({ prefix }) => share(prefix.hit, prefix.queried)],
  ["From disk", "Prompt tokens that --prefix-store had on disk", ({ prefix }) => share(prefix.disk, prefix.queried)],
  ["Drafts kept", "Draft tokens that the model agreed with", ({ drafts }) => kept(drafts)],
];

/** The numbers of a picture, if there is one. */
export function Tiles({ picture }) {
  const tile = ([name, meaning, text]) =>
    html`<div title=${meaning}><dt>${name}</dt><dd>${picture ? text(picture) : "–"}</dd></div>`;
  return html`<dl class="tiles">${TILES.map(tile)}</dl>`;
}
