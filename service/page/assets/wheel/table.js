// The picture as tables, for who cannot see it or wants the numbers.

import { html, useState } from "../html.js";
import { heldPages } from "./rings.js";
import { called, wordsOf } from "./states.js";

const HEAD =
  "Request,State,Prompt tokens,From the cache,Computed,Generated,Pages,Shared pages,Waits for".split(",");
const number = (value) => value.toLocaleString("en");
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The table is built only while it is open. */
export function Table({ picture: { sequences, left_out: more }, names }) {
  const [open, setOpen] = useState(false);
  const note = more ? `${number(more)} more requests are not listed.` : sequences.length ? "" : "No requests.";
  return html`<details ontoggle=${({ currentTarget }) => setOpen(currentTarget.open)}>
    <summary>As a table</summary>
    <div class="scrolled" tabindex="0" role="region" aria-label="Table of requests">
      <table>
        <caption class="unseen">Requests in the engine</caption>
        <thead><tr>${HEAD.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${open && sequences.map((sequence) => row(sequence, names))}</tbody>
      </table>
    </div>
    <p class="faint">${note}</p>
  </details>`;
}

function row({ id, state, prompt, cached, computed, generated, pages = [], reason }, names) {
  const held = sum(pages.map(heldPages));
  const shared = sum(pages.map((table) => table.shared.length));
  const numbers = [prompt, cached, computed, generated, held, shared].map(number);
  const cells = [state, ...numbers, reason ? wordsOf(reason) : ""];
  return html`<tr key=${id}><th scope="row">${called(names, id)}</th>${cells.map((text) => html`<td>${text}</td>`)}</tr>`;
}
