// The wheel: a live picture of the engine.

import { element } from "../dom.js";
import { Feed } from "./feed.js";
import { Load } from "./load.js";
import { paintRings } from "./paint.js";
import { Palette, watchColours } from "./palette.js";
import { behaviour, Pools } from "./pools.js";
import { Queue } from "./queue.js";
import { Rings } from "./rings.js";
import { PARTS, paintSteps, Steps } from "./steps.js";
import { Table } from "./table.js";
import { Tiles } from "./tiles.js";
import { Trouble } from "./trouble.js";

const CONTEXT = 512; // where the model's card has not come yet
const INVITATION = "One request with eight prompts, so that the wheel turns.";

/** Fill `root`. `context` has `server` (server.js) and `model` (model.js). */
export function mount(root, { server, model }) {
  const view = new Wheel(root, server, model);
  return { shown: () => view.feed.show(), hidden: () => view.feed.hide() };
}

class Wheel {
  constructor(root, server, model) {
    this.rings = new Rings();
    this.steps = new Steps();
    this.trouble = new Trouble();
    this.stillness = matchMedia("(prefers-reduced-motion: reduce)");
    this.frame = 0;
    this.feed = new Feed(
      server,
      (picture) => this.take(picture),
      (state, message) => this.tellState(state, message),
    );
    this.load = new Load(server, (n) => this.showLoad(n));
    this.context = CONTEXT;
    model.follow((card) => {
      this.context = card.max_model_len ?? CONTEXT;
      this.feed.retry(); // a key that was missing is there now
    });
    this.build(root);
    this.palette = new Palette(root);
    watchColours(() => {
      this.palette = new Palette(root);
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(this.wheels);
  }

  build(root) {
    this.banner = element("p", { class: "banner", role: "status" });
    this.button = element("button", { type: "button", class: "main", onclick: () => this.toggleLoad() }, "Send load");
    this.hint = element("span", { class: "faint" }, INVITATION);
    this.tiles = new Tiles();
    this.wheels = canvas("Wheels of the running requests; the table below has their numbers");
    this.chart = canvas("Rows of the last steps");
    this.note = element("p", { class: "faint" });
    this.newest = element("p", { class: "faint" }, "No step yet.");
    this.pools = new Pools();
    this.queue = new Queue();
    this.table = new Table();
    root.append(
      element(
        "div",
        { class: "wheel" },
        element("div", { class: "wheel-head" }, this.button, this.hint, this.banner),
        this.tiles.box,
        element(
          "div",
          { class: "wheel-parts" },
          element("div", { class: "column" }, this.runningPart(), this.queuePart()),
          element("div", { class: "column" }, this.stepsPart(), this.poolsPart()),
        ),
        this.table.box,
      ),
    );
  }

  runningPart() {
    return part(
      "Running requests",
      "Each wheel is one request, each segment a page of its KV cache. One step of the engine " +
        "turns them all by a token. Requests get on and off between steps: nobody waits for a batch to end.",
      this.wheels,
      legend([
        ["held", "held by one request"],
        ["shared", "shared with another"],
        ["empty", "not filled yet"],
      ]),
      this.note,
    );
  }

  stepsPart() {
    return part(
      "Last steps",
      "Each bar is one step of the network. All requests share it: a row for each token that is computed.",
      this.chart,
      legend(PARTS.map(({ name }) => [name, `${name} rows`])),
      this.newest,
    );
  }

  poolsPart() {
    return part(
      "Pages",
      "The KV cache is a pool of pages. Requests that begin alike share pages; " +
        "pages of ended requests stay cached until others need them.",
      this.pools.box,
      legend(["held", "shared", "cached", "free"].map((name) => [name, name])),
    );
  }

  queuePart() {
    return part("Queue", "Requests that have no place or no pages yet wait here.", this.queue.box);
  }

  take(picture) {
    const now = performance.now();
    this.rings.update(picture, now);
    this.steps.add(picture.steps);
    this.tiles.update(picture);
    if (picture.pools.length) this.showPools(picture.pools); // none are known while the engine restarts
    this.queue.update(picture);
    this.newest.textContent = this.steps.newest;
    this.warn(...(this.trouble.judge(picture) ?? ["", ""]));
    this.table.update(picture);
    this.draw();
  }

  showPools(pools) {
    this.pools.update(pools);
    const text = behaviour(pools);
    if (this.note.textContent !== text) this.note.textContent = text;
  }

  tellState(state, message) {
    if (state === "lost") this.warn("bad", `${message} Trying again…`);
    if (state === "refused") this.warn("bad", message);
  }

  warn(level, text) {
    if (this.banner.textContent !== text) this.banner.textContent = text;
    this.banner.dataset.level = level;
  }

  /** Draw in the next frame, and go on while something moves. */
  draw() {
    this.frame ||= requestAnimationFrame((now) => {
      this.frame = 0;
      const still = this.stillness.matches;
      const moving = this.rings.advance(now, still);
      paintRings(this.wheels, this.rings, this.palette, now, still);
      paintSteps(this.chart, this.steps, this.palette);
      if (moving && this.wheels.clientWidth) this.draw();
    });
  }

  toggleLoad() {
    if (this.load.active) this.load.stop();
    else this.load.send(this.context);
  }

  showLoad(n) {
    this.button.textContent = n ? "Stop load" : "Send load";
    this.hint.textContent = n ? `Answers that this page still waits for: ${n}.` : this.load.failure || INVITATION;
  }
}

const canvas = (label) => element("canvas", { role: "img", "aria-label": label });

function part(title, sentence, ...content) {
  return element(
    "section",
    { class: "part-box", "aria-label": title },
    element("h2", {}, title),
    element("p", {}, sentence),
    content,
  );
}

function legend(entries) {
  return element(
    "ul",
    { class: "legend" },
    entries.map(([kind, text]) => element("li", {}, element("i", { class: `part ${kind}` }), text)),
  );
}
