// The rings: one for each running request, with a place of its own while it runs. Pure numbers, nothing is drawn here.

const CATCH_UP_MS = 160; // a ring turns towards its newest token this fast
const COME_MS = 400;
const GO_MS = 600;
const FEWEST_SLOTS = 4;

/**
 * One ring. `head` is the token that stands at the top, `target` the one that should.
 * @typedef {{id: number, place: number, sequence: object, head: number, target: number, slots: number[],
 *   shownSlots: number[], came: number, gone: number | null}} Ring
 */

/** The page slots around a ring. With a window it is a number that never changes; without one the ring doubles. */
export function slotsOf(pool, table) {
  const held = heldPages(table);
  if (pool.window !== null) return Math.max(Math.ceil(pool.window / pool.page_size) + 1, held);
  let slots = FEWEST_SLOTS;
  while (slots < held) slots *= 2;
  return slots;
}

export const heldPages = (table) => table.held ?? table.ids.length;

/** Whether a request runs: it has a place on the wheel, not in the queue. */
export const runs = ({ state }) => state === "prompt" || state === "decode";

export class Rings {
  /** @type {Map<number, Ring>} */
  rings = new Map();
  pools = [];
  #at = 0;

  /** Take the running requests of a picture. New ones get the first free place. */
  update({ sequences, pools }, now) {
    if (pools.length) this.pools = pools;
    const running = new Map(sequences.filter(runs).map((sequence) => [sequence.id, sequence]));
    for (const ring of this.rings.values()) if (!running.has(ring.id)) ring.gone ??= now;
    for (const [id, sequence] of running) {
      const ring = this.rings.get(id) ?? this.#join(id, sequence, now);
      const slots = this.pools.map((pool, i) => (sequence.pages[i] ? slotsOf(pool, sequence.pages[i]) : FEWEST_SLOTS));
      Object.assign(ring, { sequence, target: sequence.computed, slots, gone: null });
      ring.shownSlots ??= slots;
    }
  }

  /** Move everything to the time `now`. Returns whether something still moves. */
  advance(now, still) {
    const share = still ? 1 : 1 - Math.exp(-Math.min(now - this.#at, 1000) / CATCH_UP_MS);
    this.#at = now;
    let moving = false;
    for (const ring of this.rings.values()) {
      if (ring.gone !== null && (still || now - ring.gone > GO_MS)) {
        this.rings.delete(ring.id);
        continue;
      }
      ring.head = approach(ring.head, ring.target, share);
      ring.shownSlots = ring.slots.map((slots, i) => approach(ring.shownSlots[i] ?? slots, slots, share));
      moving ||= ring.gone !== null || ring.head !== ring.target || now - ring.came < COME_MS;
      moving ||= ring.slots.some((slots, i) => slots !== ring.shownSlots[i]);
    }
    return moving;
  }

  /** How much of a ring is there, from 0 to 1: it grows as it comes, and shrinks as it goes. */
  presence(ring, now, still) {
    if (still) return 1;
    const come = Math.min((now - ring.came) / COME_MS, 1);
    return ring.gone === null ? come : Math.min(come, 1 - (now - ring.gone) / GO_MS);
  }

  get places() {
    return Math.max(0, ...[...this.rings.values()].map(({ place }) => place + 1));
  }

  #join(id, sequence, now) {
    const taken = new Set([...this.rings.values()].map(({ place }) => place));
    let place = 0;
    while (taken.has(place)) place++;
    const ring = { id, place, sequence, head: sequence.computed, came: now, gone: null };
    this.rings.set(id, ring);
    return ring;
  }
}

function approach(value, target, share) {
  const next = value + (target - value) * share;
  return Math.abs(target - next) < 0.02 ? target : next;
}
