// A text as its tokens, coloured by probability. Pointing at a token, or moving to it by keyboard, shows what else
// the model might have written.

import { html, useLayoutEffect, useMemo, useRef, useState } from "./html.js";

const LEVELS = [0.9, 0.6, 0.3, 0.1]; // above the first: no colour
/** What the colours mean. */
export const COLOURS =
  "Probability of each token: from 90 % without colour, from 60 % green, from 30 % yellow, from 10 % orange, below red.";

const percent = (logprob) => {
  const value = 100 * Math.exp(logprob);
  return `${value >= 10 ? Math.round(value) : value >= 0.01 ? value.toPrecision(2) : "<0.01"} %`;
};
const quoted = (text) => `“${text.replaceAll("\n", "⏎").replaceAll("\t", "⇥")}”`;

function level(logprob) {
  const index = LEVELS.findIndex((least) => Math.exp(logprob) >= least);
  return index < 0 ? LEVELS.length : index;
}

function describe({ token, logprob, top }) {
  const others = top.filter(([name]) => name !== token).map(([name, own]) => `${quoted(name)} ${percent(own)}`);
  return `${quoted(token)} ${percent(logprob)}${others.length ? `; else ${others.join(", ")}` : ""}`;
}

const GAP = 8; // pixels between the tip and the edge of the window
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** The tokens are one stop of the Tab key; the arrow keys move inside. `scores` only grows. */
export function Tokens({ scores }) {
  const [pointed, point] = useState(null); // the element of a token
  const tokens = useMemo(() => scores.map((score, index) => token(score, index)), [scores, scores.length]);
  const look = ({ target }) => target.dataset.index && point(target);
  const hide = () => point(null);
  const move = (event) => {
    const { children } = event.currentTarget;
    const index = Number(event.target.dataset.index);
    const ends = { Home: 0, End: children.length - 1 };
    if (event.key === "Escape" && pointed) {
      event.stopPropagation();
      return hide();
    }
    const next = children[event.key in STEPS ? index + STEPS[event.key] : ends[event.key]];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };
  return html`<div class="token-box" onpointerleave=${hide}>
    <div class="tokens" role="listbox" aria-label="Tokens and their probabilities"
      onpointerover=${look} onfocusin=${look} onfocusout=${hide} onkeydown=${move}>${tokens}</div>
    ${pointed && html`<${Tip} of=${pointed} score=${scores[pointed.dataset.index]} />`}
  </div>`;
}

function token(score, index) {
  return html`<span class="token level-${level(score.logprob)}" role="option" aria-label=${describe(score)}
    aria-selected="false" tabindex=${index ? -1 : 0} data-index=${index}
    >${(score.shown || "·").replaceAll("\n", "⏎\n")}</span>`;
}

/** What else might have stood there: below the token, or above it where the window ends. */
function Tip({ of, score }) {
  const tip = useRef();
  const { token, logprob, top } = score;
  const rows = top.some(([name]) => name === token) ? top : [[token, logprob], ...top];
  useLayoutEffect(() => {
    tip.current.showPopover(); // above all boxes
    const { left, top, bottom } = of.getClientRects()[0] ?? of.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height, style } = tip.current;
    style.left = `${Math.max(0, Math.min(left, innerWidth - width - GAP))}px`;
    style.top = `${bottom + height < innerHeight ? bottom + 2 : top - height - 2}px`;
  }, [of]);
  return html`<div class="tip" role="tooltip" popover="manual" ref=${tip}>
    ${rows.map(
      ([name, own]) => html`<div class=${name === token ? "own" : null}>
        <span>${quoted(name)}</span><span>${percent(own)}</span>
      </div>`,
    )}
  </div>`;
}
