// The API of this server, from its OpenAPI document.

import { html, render, useState } from "../html.js";
import { askForKey } from "../key.js";
import { Server, ServerError } from "../server.js";
import { setUpTheme } from "../theme.js";
import { Operation, textOf } from "./operation.js";

const byId = (id) => document.getElementById(id);
const server = new Server(askForKey);

/** All operations of the document, in its order. */
function operationsOf(described) {
  return Object.entries(described.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({
      id: `${method}-${path.replaceAll(/\W+/g, "-").replace(/^-/, "")}`,
      method,
      path,
      operation,
      text: textOf(described, method, path, operation),
    })),
  );
}

function Docs({ described, operations }) {
  const [words, search] = useState([]);
  const matches = ({ text }) => words.every((word) => text.includes(word));
  const { title, summary, version } = described.info;
  const oninput = ({ currentTarget }) => search(currentTarget.value.toLowerCase().split(/\s+/).filter(Boolean));
  return html`<div class="docs">
    <h2>The API of ${title} ${version}</h2>
    <p>${summary} <a href="openapi.json">openapi.json</a> has the same for programs.</p>
    <div class="search">
      <label for="search">Search</label>
      <input id="search" type="search" autocomplete="off" placeholder="a path, a field, a word" oninput=${oninput} />
    </div>
    ${operations.map(
      (one) => html`<${Operation} key=${one.id} ...${one} described=${described} server=${server} hidden=${!matches(one)} />`,
    )}
    <p hidden=${operations.some(matches)}>Nothing matches.</p>
  </div>`;
}

/** Open the operation that the address names. */
function follow() {
  const box = location.hash && byId(location.hash.slice(1));
  if (!box) return;
  box.open = true;
  box.scrollIntoView();
  box.querySelector("summary").focus();
}

async function load() {
  try {
    const described = await server.json("openapi.json");
    render(html`<${Docs} described=${described} operations=${operationsOf(described)} />`, byId("main"));
    byId("state").textContent = "";
    byId("key-button").hidden = !server.key; // the document needs a key where the server has keys
    follow();
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    byId("state").textContent = error.message;
    byId("key-button").hidden = false;
  }
}

setUpTheme(byId("theme-button"));
byId("key-button").addEventListener("click", async () => {
  const key = await askForKey("");
  if (key === null) return;
  server.key = key;
  if (!document.querySelector(".docs")) await load();
});
addEventListener("hashchange", follow);
load();
