// The pools as bars: who has the pages.

import { element } from "../dom.js";

const number = (value) => value.toLocaleString("en");

/** The parts of a pool, which add up to its pages. `held` of the feed includes `shared`. */
export function partsOf({ held, shared, cached, free }) {
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

/** A bar a pool. Elements stay; only widths and numbers change. */
export class Pools {
  box = element("div", { class: "pools" });
  #bars = [];

  update(pools) {
    if (pools.length !== this.#bars.length) {
      this.#bars = pools.map(makeBar);
      this.box.replaceChildren(...this.#bars.map(({ box }) => box));
    }
    pools.forEach((pool, i) => fillBar(this.#bars[i], pool));
  }
}

function makeBar() {
  const parts = Object.fromEntries(
    ["held", "shared", "cached", "free"].map((name) => [name, element("div", { class: `part ${name}` })]),
  );
  const bar = element("div", { class: "bar", role: "img" }, Object.values(parts));
  const title = element("p", { class: "pool-title" });
  const counts = element("p", { class: "faint" });
  return { box: element("div", {}, title, bar, counts), parts, bar, title, counts };
}

function fillBar({ parts, bar, title, counts }, pool) {
  const listed = partsOf(pool);
  for (const [name, pages] of listed) {
    parts[name].style.flexGrow = pages;
    parts[name].hidden = pages === 0;
  }
  const words = listed.map(([name, pages]) => `${number(pages)} ${name}`).join(", ");
  title.textContent = nameOf(pool);
  counts.textContent = `${words} of ${number(pool.pages)} pages`;
  bar.setAttribute("aria-label", counts.textContent);
}
