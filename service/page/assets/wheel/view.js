// The wheel: a live picture of the engine.

import { createRef, html, render } from "../html.js";
import { Feed } from "./feed.js";
import { Load } from "./load.js";
import { paintRings } from "./paint.js";
import { Palette } from "./palette.js";
import { behaviour, Pools } from "./pools.js";
import { Queue } from "./queue.js";
import { Rings } from "./rings.js";
import { STATES } from "./states.js";
import { Chart, PARTS, Steps } from "./steps.js";
import { Table } from "./table.js";
import { Tiles } from "./tiles.js";

const INVITATION = "Sends eight prompts, so that you see the wheel turn.";
const TABLE_MS = 1000; // a table that changes ten times a second cannot be read
const NOTHING = { sequences: [], waiting: 0 };

/** Fill `root`. `context` has `server` (server.js) and `model` (model.js). */
export function mount(root, { server, model }) {
  const view = new Wheel(root, server, model);
  return { shown: () => view.feed.follow(true), hidden: () => view.feed.follow(false) };
}

class Wheel {
  rings = new Rings();
  steps = new Steps();
  stillness = matchMedia("(prefers-reduced-motion: reduce)");
  wheels = createRef();
  frame = 0;
  timer = 0; // of the table
  card = {}; // of the model, once it is known
  warning = ["", ""]; // level, text
  loading = 0; // answers of the load that have not ended
  pools = [];
  tabled = NOTHING; // the picture in the table
  names = new Map(); // of the sequences, for one who may see them
  mayName = true;

  constructor(root, server, model) {
    Object.assign(this, { root, server, model });
    this.load = new Load(server, (n) => this.show({ loading: n }));
    this.show({});
    const warn = (text) => this.show({ warning: ["bad", text] });
    this.feed = new Feed(server, (picture) => this.take(picture), warn);
    model.follow((card) => this.follow(card, model.menu.length > 0));
    this.palette = new Palette(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.palette = new Palette(root);
      this.paint();
    });
    new ResizeObserver(() => this.paint()).observe(this.wheels.current);
  }

  /** Show the engine of a model. Where there is one model, its feed perhaps waited for a key. */
  follow(card, isOneOfSeveral) {
    if (isOneOfSeveral && card.root !== this.card.root) {
      Object.assign(this, { rings: new Rings(), steps: new Steps(), pools: [], tabled: NOTHING });
      this.show({ picture: undefined });
    }
    this.card = card;
    this.feed.of(isOneOfSeveral ? card.root : null);
  }

  take(picture) {
    this.rings.update(picture, performance.now());
    this.steps.add(picture.steps);
    const pools = picture.pools.length ? picture.pools : this.pools; // none are known while the engine restarts
    const trouble = picture.trouble ? ["warn", picture.trouble] : ["", ""]; // as noria explain says it
    this.show({ picture, pools, warning: STATES[picture.state] ?? trouble });
    this.timer ||= setTimeout(async () => {
      if (this.mayName && this.picture.sequences.length) await this.readNames();
      this.timer = 0;
      this.show({ tabled: this.picture });
    }, TABLE_MS);
    this.paint();
  }

  async readNames() {
    try {
      const { data } = await this.server.json("v1/requests");
      const own = data.filter(({ root }) => !this.model.menu.length || root === this.card.root);
      const named = ({ id, key, choices }) =>
        choices.map(({ sequence }) => [sequence, key ? `${id} of ${key}` : id]);
      this.names = new Map(own.flatMap(named));
    } catch (error) {
      this.mayName = error.status !== 403; // a key without the right does not get it while the page is open
    }
  }

  toggleLoad() {
    if (this.load.active) this.load.stop();
    else this.load.send(this.card);
  }

  /** Change what the page shows, but for the rings. */
  show(changes) {
    Object.assign(this, changes);
    const { picture, pools, loading } = this;
    const [level, warning] = this.warning;
    const hint = loading ? `Answers that this page still waits for: ${loading}.` : this.load.failure || INVITATION;
    const page = html`<div class="wheel">
      <div class="wheel-head">
        <button type="button" class="main" onclick=${() => this.toggleLoad()}>
          ${loading ? "Stop load" : "Send load"}
        </button>
        <span class="faint">${hint}</span>
        <p class="banner" role="status" data-level=${level}>${warning}</p>
      </div>
      <${Tiles} picture=${picture} />
      <div class="wheel-parts">
        <div class="column">
          <${Part} title="Running requests" about="Each wheel is one request, each segment a page of its KV cache. One
            step of the engine turns them all by a token. Requests get on and off between steps: nobody waits for a
            batch to end.">
            <canvas role="img" aria-label="Wheels of the running requests; the table below has their numbers"
              ref=${this.wheels}></canvas>
            <${Legend}
              entries=${{ held: "held by one request", shared: "shared with another", empty: "not filled yet" }} />
            <p class="faint">${pools.length > 0 && behaviour(pools)}</p>
          <//>
          <${Part} title="Queue" about="Requests that have no place or no pages yet wait here.">
            <${Queue} picture=${picture ?? NOTHING} names=${this.names} />
          <//>
        </div>
        <div class="column">
          <${Part} title="Last steps" about="Each bar is one step of the network. All requests share it: a row for each
            token that is computed.">
            <${Chart} list=${this.steps.list} />
            <${Legend} entries=${Object.fromEntries(PARTS.map((name) => [name, `${name} rows`]))} />
            <p class="faint">${this.steps.newest}</p>
          <//>
          <${Part} title="Pages" about="The KV cache is a pool of pages. Requests that begin alike share pages; pages of
            ended requests stay cached until others need them.">
            <${Pools} pools=${pools} />
            <${Legend} entries=${{ held: "held", shared: "shared", cached: "cached", free: "free" }} />
          <//>
        </div>
      </div>
      <${Table} picture=${this.tabled} names=${this.names} />
    </div>`;
    render(page, this.root);
  }

  /** Paint the rings in the next frame, and go on while something moves. */
  paint() {
    this.frame ||= requestAnimationFrame((now) => {
      this.frame = 0;
      const still = this.stillness.matches;
      const moving = this.rings.advance(now, still);
      paintRings(this.wheels.current, this.rings, this.palette, now, still);
      if (moving && this.wheels.current.clientWidth) this.paint();
    });
  }
}

function Part({ title, about, children }) {
  return html`<section class="part-box" aria-label=${title}><h2>${title}</h2><p>${about}</p>${children}</section>`;
}

function Legend({ entries }) {
  const entry = ([kind, text]) => html`<li><i class="part ${kind}"></i>${text}</li>`;
  return html`<ul class="legend">${Object.entries(entries).map(entry)}</ul>`;
}
