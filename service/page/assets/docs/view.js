// The API of this server, from its OpenAPI document.

import { html, render, useState } from "../html.js";
import { Operation, textOf } from "./operation.js";

/** The groups of operations: the first that fits the path has it. */
const GROUPS = [
  ["Chat", /^\/v1\/(chat|messages|responses$)/],
  ["Stored responses and conversations", /^\/v1\/(responses|conversations)/],
  ["Text, embeddings and tokens", /^\/v1\/(completions|fim|embeddings)|^\/(de)?token|template/],
  ["Audio", /^\/v1\/audio/],
  ["Models and adapters", /^\/v1\/(models|.*lora)/],
  ["Ollama", /^\/api/],
  ["The server", /./],
];

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

function Docs({ described, server, model, operations }) {
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
    ${GROUPS.map(([group]) => {
      const own = operations.filter(({ path }) => GROUPS.find(([, fits]) => fits.test(path))[0] === group);
      return html`<section hidden=${!own.some(matches)}>
        <h2>${group}</h2>
        ${own.map((one) => html`<${Operation} ...${{ ...one, described, server, model, hidden: !matches(one) }} />`)}
      </section>`;
    })}
    <p hidden=${operations.some(matches)}>Nothing matches.</p>
  </div>`;
}

/** Fill `root`. `context` has `server` (server.js) and `model` (model.js). */
export function mount(root, { server, model }) {
  let begun = false;
  const load = async () => {
    if (begun) return;
    begun = true;
    try {
      const described = await server.json("openapi.json");
      render(html`<${Docs} ...${{ described, server, model }} operations=${operationsOf(described)} />`, root);
      open();
    } catch (error) {
      begun = false;
      render(html`<p class="docs" role="alert">${error.message}</p>`, root);
    }
  };
  document.title = "Noria: API";
  addEventListener("hashchange", open);
  load();
  model.follow(load); // a key that was missing is there now
  return {};
}

/** Open the operation that the address names. */
function open() {
  const box = document.getElementById(location.hash.slice(1));
  if (!box?.matches(".operation")) return;
  box.open = true;
  box.scrollIntoView();
  box.querySelector("summary").focus();
}
