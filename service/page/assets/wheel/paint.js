// Draws the rings on a canvas: all segments of one kind at once, thus many rings stay cheap.

import { fitted } from "./palette.js";
import { heldPages } from "./rings.js";

const FEWEST_PLACES = 8;
const SIZES = [148, 112, 88, 72]; // pixels of a place, largest first
const MOST_ROWS = [2, 3, 4, Infinity]; // of places of that size
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
  const kinds = { track: new Path2D(), empty: new Path2D(), held: new Path2D(), shared: new Path2D() };
  const left = (width - columns * size) / 2;
  const centre = (place) => [left + ((place % columns) + 0.5) * size, (Math.floor(place / columns) + 0.5) * size];
  const labels = [];
  for (const ring of rings.rings.values()) {
    const presence = rings.presence(ring, now, still);
    const [x, y] = centre(ring.place);
    const radius = (size / 2 - 6) * (0.5 + 0.5 * presence);
    rings.pools.forEach((pool, i) => addTable(kinds, ring, pool, i, x, y, radius - i * size * 0.11, size * 0.09));
    labels.push([ring, x, y, presence]);
  }
  paintPlaces(context, palette, rings, rows * columns, centre, size);
  fillKinds(context, palette, kinds);
  for (const label of labels) paintLabel(context, palette, size, ...label);
}

/** The segments of a sequence's pages in one pool. The token `shown` stands at the top, older ones follow clockwise. */
function addTable(kinds, ring, pool, i, x, y, outer, thickness) {
  const table = ring.sequence.pages[i];
  if (!table || outer < thickness) return;
  const inner = outer - thickness;
  kinds.track.moveTo(x + outer, y);
  kinds.track.arc(x, y, outer, 0, 2 * Math.PI);
  const perToken = (2 * Math.PI) / (ring.shownSlots[i] * pool.page_size);
  const angle = (position) => TOP + (ring.shown - position) * perToken;
  const gap = Math.min(1.5 / outer, perToken * pool.page_size * 0.15);
  const shared = new Set(table.shared);
  const firstShown = table.first + heldPages(table) - table.ids.length;
  table.ids.forEach((_, index) => {
    const from = (firstShown + index) * pool.page_size;
    const to = from + pool.page_size;
    const full = Math.min(to, Math.max(from, ring.shown));
    if (full < to) addSegment(kinds.empty, x, y, outer, inner, angle(to) + gap, angle(full));
    if (full > from) {
      addSegment(shared.has(index) ? kinds.shared : kinds.held, x, y, outer, inner, angle(full), angle(from) - gap);
    }
  });
  if (firstShown > table.first) { // more pages than the picture lists: they are held all the same
    addSegment(kinds.held, x, y, outer, inner, angle(firstShown * pool.page_size), angle(table.first * pool.page_size));
  }
}

function addSegment(path, x, y, outer, inner, from, to) {
  if (to <= from) return;
  path.moveTo(x + outer * Math.cos(from), y + outer * Math.sin(from));
  path.arc(x, y, outer, from, to);
  path.arc(x, y, inner, to, from, true);
  path.closePath();
}

function paintPlaces(context, palette, rings, n, centre, size) {
  const taken = new Set([...rings.rings.values()].map(({ place }) => place));
  context.strokeStyle = palette.line;
  context.lineWidth = 1;
  context.setLineDash([2, 6]);
  context.beginPath();
  for (let place = 0; place < n; place++) {
    if (taken.has(place)) continue;
    const [x, y] = centre(place);
    context.moveTo(x + size * 0.3, y);
    context.arc(x, y, size * 0.3, 0, 2 * Math.PI);
  }
  context.stroke();
  context.setLineDash([]);
}

function fillKinds(context, palette, kinds) {
  context.lineWidth = 1;
  context.strokeStyle = palette.line;
  context.globalAlpha = 0.4;
  context.stroke(kinds.track);
  context.globalAlpha = 1;
  context.stroke(kinds.empty);
  context.fillStyle = palette.accent;
  context.fill(kinds.held);
  context.fillStyle = palette.fill(context, palette.good, "striped");
  context.fill(kinds.shared);
  context.strokeStyle = palette.good;
  context.stroke(kinds.shared);
}

function paintLabel(context, palette, size, { sequence }, x, y, presence) {
  const large = size > 80;
  const share = sequence.prompt ? Math.min(sequence.computed / sequence.prompt, 1) : 1;
  const [top, bottom] = sequence.state === "prompt"
    ? [`${Math.floor(100 * share)} %`, "prompt"]
    : [sequence.generated.toLocaleString("en"), large ? "tokens" : ""];
  context.globalAlpha = Math.max(0, presence);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = sequence.state === "prompt" ? palette.warm : palette.text;
  context.font = `600 ${large ? 17 : 13}px system-ui, sans-serif`;
  context.fillText(top, x, y - (bottom && large ? 7 : 0));
  if (bottom && large) {
    context.font = "12px system-ui, sans-serif";
    context.fillText(bottom, x, y + 11);
  }
  context.globalAlpha = 1;
}
