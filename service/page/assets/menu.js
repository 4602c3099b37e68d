// The menu of a server with several models: their states, and the choice of the one that answers.

import { stateOf } from "./card.js";
import { html, render } from "./html.js";

/** Draw the menu of `model` (model.js) into `root`; nothing where there is one model. */
export function drawMenu(root, model) {
  render(model.menu.length ? html`<${Menu} model=${model} />` : null, root);
}

function Menu({ model }) {
  const { chosen, menu } = model;
  const look = ({ newState }) => newState === "open" && model.watch();
  return html`<div onkeydown=${keepEscape}>
    ${chosen.state === "loading" && html`<${Loading} card=${chosen} />`}
    <button type="button" aria-label="Model: ${chosen.id}" popovertarget="models-list">${chosen.id} ▾</button>
    <ul id="models-list" popover="auto" aria-label="Models" ontoggle=${look}>
      ${menu.map(
        (card) => html`<li key=${card.id}>
          <button type="button" class="quiet" aria-current=${card.id === chosen.id ? "true" : null}
            popovertarget="models-list" popovertargetaction="hide" onclick=${() => model.choose(card.id)}>
            ${card.id}
          </button>
          <span class="state">${stateOf(card)}</span>
          ${card.state === "loading" && html`<${Loading} card=${card} />`}
        </li>`,
      )}
    </ul>
  </div>`;
}

function Loading({ card: { id, stage, progress } }) {
  return html`<span class="loading">
    <progress value=${progress ?? 0} aria-label="Loading of ${id}"></progress> ${stage}
  </span>`;
}

/** Escape closes an open menu, and nothing else. */
function keepEscape(event) {
  if (event.key === "Escape" && event.currentTarget.querySelector(":popover-open")) event.stopPropagation();
}
