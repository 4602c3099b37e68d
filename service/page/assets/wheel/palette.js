// Colours of base.css as a canvas takes them, and patterns, because colour alone must not tell states apart.

const NAMES = ["back", "raised", "line", "text", "faint", "accent", "good", "warm"];

/** {name: colour} and fills, for the colours that hold now. */
export class Palette {
  constructor(root) {
    const probe = document.createElement("span");
    probe.hidden = true;
    root.append(probe);
    for (const name of NAMES) {
      probe.style.color = `var(--${name})`;
      this[name] = getComputedStyle(probe).color;
    }
    probe.remove();
  }

  /** A fill for `context`: the colour, "striped" or "dotted" with the background's colour. */
  fill(context, colour, pattern = "") {
    if (!pattern) return colour;
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const drawn = tile.getContext("2d");
    drawn.fillStyle = pattern === "dotted" ? this.back : colour;
    drawn.fillRect(0, 0, 6, 6);
    drawn.strokeStyle = drawn.fillStyle = pattern === "dotted" ? colour : this.back;
    if (pattern === "striped") {
      drawn.lineWidth = 1.6;
      drawn.beginPath();
      for (const x of [-6, 0, 6]) (drawn.moveTo(x - 1, 7), drawn.lineTo(x + 7, -1));
      drawn.stroke();
    } else {
      drawn.fillRect(1, 1, 3, 3);
    }
    return context.createPattern(tile, "repeat");
  }
}

/** Calls `onChange` when the colours change: by the system or by the button of the frame. */
export function watchColours(onChange) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  new MutationObserver(onChange).observe(document.documentElement, { attributeFilter: ["data-theme"] });
}

/** Fit a canvas to its box on this screen. Returns its context, in CSS pixels, with nothing drawn. */
export function fitted(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== across || canvas.height !== down) {
    Object.assign(canvas, { width: across, height: down });
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
