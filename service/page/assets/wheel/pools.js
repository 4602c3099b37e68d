// The pools as bars: who has the pages.

import { html } from "../html.js";

const number = (value) => value.toLocaleString("en");

/** The parts of a pool, which add up to its pages. `held` of the feed includes `shared`. */
function partsOf({ held, shared, cached, free }) {
  return [
    ["held", held - shared],
    ["shared", shared],
    ["cached", cached],
    ["free", free],
  ];
}

const nameOf = ({ window, page_size }) =>
  `${window === null ? "Full attention" : `Window of ${number(window)} tokens`}, pages of ${number(page_size)} tokens`;

/** How a ring behaves in these pools. */
export function behaviour(pools) {
  const window = pools.find((pool) => pool.window !== null)?.window;
  const grows = "With full attention a ring grows with its text.";
  if (window === undefined) return grows;
  const turns = `With a window of ${number(window)} tokens a ring keeps its size: where a page leaves, the next one fills.`;
  return pools.length === 1 ? turns : `Each pool has a ring. ${turns} ${grows}`;
}

/** A bar a pool. */
export function Pools({ pools }) {
  return html`<div class="pools">${pools.map((pool) => html`<${Pool} pool=${pool} />`)}</div>`;
}

function Pool({ pool }) {
  const parts = partsOf(pool);
  const words = parts.map(([name, pages]) => `${number(pages)} ${name}`).join(", ");
  const counts = `${words} of ${number(pool.pages)} pages`;
  const part = ([name, pages]) =>
    html`<div class="part ${name}" style=${{ flexGrow: pages }} hidden=${pages === 0}></div>`;
  return html`<div>
    <p class="pool-title">${nameOf(pool)}</p>
    <div class="bar" role="img" aria-label=${counts}>${parts.map(part)}</div>
    <p class="faint">${counts}</p>
  </div>`;
}
