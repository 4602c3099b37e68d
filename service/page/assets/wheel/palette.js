// Colours of base.css as a canvas takes them, and a pattern, because colour alone must not tell states apart.

const NAMES = ["back", "raised", "line", "text", "accent", "good", "warm"];

/** {name: colour} and a pattern, for the colours that hold now. */
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

  /** A fill for `context`: the colour with stripes of the background's. */
  striped(context, colour) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const drawn = tile.getContext("2d");
    drawn.fillStyle = colour;
    drawn.fillRect(0, 0, 6, 6);
    drawn.strokeStyle = this.back;
    drawn.lineWidth = 1.6;
    drawn.beginPath();
    for (const x of [-6, 0, 6]) (drawn.moveTo(x - 1, 7), drawn.lineTo(x + 7, -1));
    drawn.stroke();
    return context.createPattern(tile, "repeat");
  }
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
