// Draws the rings on a canvas: a few thick arcs a ring, however many pages it has.

import { fitted } from "./palette.js";
import { heldPages } from "./rings.js";

const FEWEST_PLACES = 8;
const SIZES = [148, 112, 88, 72]; // pixels of a place, largest first
const MOST_ROWS = [2, 3, 4, Infinity]; // of places of that size
const LEAST_PAGE = 4; // pixels of a page on its ring; lines between shorter ones would hide them
const SHORT = new Intl.NumberFormat("en", { notation: "compact" });
const TOP = -Math.PI / 2;

/** The grid of places: {size, columns, rows} for so many requests on so wide a canvas. */
export function grid(width, places) {
  const n = Math.max(places, FEWEST_PLACES);
  const rows = (size) => Math.ceil(n / Math.max(1, Math.floor(width / size)));
  const size = SIZES.find((size, i) => rows(size) <= MOST_ROWS[i]);
  const columns = Math.min(n, Math.max(1, Math.floor(width / size)));
  return { size, columns, rows: rows(size) };
}

/** Draw `rings` (rings.js) at the time `now`. */
export function paintRings(canvas, rings, palette, now, still) {
  const width = canvas.clientWidth;
  const { size, columns, rows } = grid(width, rings.places);
  const context = fitted(canvas, width, rows * size);
  const fills = { held: palette.accent, shared: palette.striped(context, palette.good), empty: palette.raised };
  const left = (width - columns * size) / 2;
  const centre = (place) => [left + ((place % columns) + 0.5) * size, (Math.floor(place / columns) + 0.5) * size];
  for (const ring of rings.rings.values()) {
    const presence = rings.presence(ring, now, still);
    const radius = (size / 2 - 6) * (0.5 + 0.5 * presence);
    context.setTransform(context.getTransform().translate(...centre(ring.place)));
    rings.pools.forEach((pool, i) =>
      paintTable(context, palette, fills, ring, pool, i, radius - i * size * 0.12, size * 0.09),
    );
    paintLabel(context, palette, size, ring, presence);
    context.setTransform(context.getTransform().translate(...centre(ring.place).map((value) => -value)));
  }
}

/** A sequence's pages in one pool. The token `head` stands at the top, older ones follow clockwise. */
function paintTable(context, palette, fills, ring, pool, i, outer, thickness) {
  const table = ring.sequence.pages[i];
  const radius = outer - thickness / 2;
  if (!table || radius < thickness) return;
  const perToken = (2 * Math.PI) / (ring.shownSlots[i] * pool.page_size);
  const angle = (position) => TOP + (ring.head - position) * perToken;
  band(context, palette.line, 1, radius, 0, 2 * Math.PI);
  for (const { kind, from, to } of bands(table, pool.page_size, ring.head)) {
    if (kind !== "held")
      band(context, kind === "shared" ? palette.good : palette.line, thickness, radius, angle(to), angle(from));
    const inset = kind === "held" ? 0 : 1; // a border, because stripes and emptiness have none
    band(context, fills[kind], thickness - 2 * inset, radius, angle(to) + inset / outer, angle(from) - inset / outer);
  }
  paintGaps(context, palette, table, pool.page_size, perToken, angle, radius, thickness);
}

/** Pages of one kind that follow each other, as ranges of tokens: few, however many pages there are. */
function bands(table, pageSize, head) {
  const found = [];
  const add = (kind, from, to) => {
    if (to <= from) return;
    if (found.at(-1)?.kind === kind) found.at(-1).to = to;
    else found.push({ kind, from, to });
  };
  const shared = new Set(table.shared);
  const firstListed = table.first + heldPages(table) - table.ids.length;
  add("held", table.first * pageSize, firstListed * pageSize); // pages that the picture does not list
  table.ids.forEach((_, index) => {
    const from = (firstListed + index) * pageSize;
    const full = Math.min(from + pageSize, Math.max(from, head));
    add(shared.has(index) ? "shared" : "held", from, full);
    add("empty", full, from + pageSize);
  });
  return found;
}

function band(context, colour, thickness, radius, from, to) {
  context.strokeStyle = colour;
  context.lineWidth = thickness;
  context.beginPath();
  context.arc(0, 0, radius, from, Math.max(from, to));
  context.stroke();
}

/** Lines between pages, unless they are too many to be seen. */
function paintGaps(context, palette, table, pageSize, perToken, angle, radius, thickness) {
  if (perToken * pageSize * radius < LEAST_PAGE) return;
  const [inner, outer] = [radius - thickness / 2 - 1, radius + thickness / 2 + 1];
  context.strokeStyle = palette.back;
  context.lineWidth = 1.5;
  context.beginPath();
  const held = heldPages(table);
  for (let block = table.first; block <= table.first + held; block++) {
    const [cos, sin] = [Math.cos(angle(block * pageSize)), Math.sin(angle(block * pageSize))];
    context.moveTo(inner * cos, inner * sin);
    context.lineTo(outer * cos, outer * sin);
  }
  context.stroke();
}

function paintLabel(context, palette, size, { sequence }, presence) {
  const large = size > 80;
  const share = sequence.prompt ? Math.min(sequence.computed / sequence.prompt, 1) : 1;
  const [top, bottom] =
    sequence.state === "prompt"
      ? [`${Math.floor(100 * share)} %`, "prompt"]
      : large
        ? [sequence.generated.toLocaleString("en"), "tokens"]
        : [SHORT.format(sequence.generated), ""];
  context.globalAlpha = Math.max(0, presence);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = sequence.state === "prompt" ? palette.warm : palette.text;
  context.font = `600 ${large ? 17 : 12}px system-ui, sans-serif`;
  context.fillText(top, 0, bottom && large ? -7 : 0);
  if (bottom && large) {
    context.font = "12px system-ui, sans-serif";
    context.fillText(bottom, 0, 11);
  }
  context.globalAlpha = 1;
}
