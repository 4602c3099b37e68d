// The API of this server, from its OpenAPI document.

import { element } from "../dom.js";
import { askForKey } from "../key.js";
import { Server, ServerError } from "../server.js";
import { setUpTheme } from "../theme.js";
import { Operation } from "./operation.js";

const byId = (id) => document.getElementById(id);
const server = new Server(askForKey);

function tell(text) {
  byId("state").textContent = text;
}

/** All operations of the document, in its order. */
function operationsOf(described) {
  return Object.entries(described.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => new Operation(server, described, method, path, operation)),
  );
}

function build(described) {
  const operations = operationsOf(described);
  const none = element("p", { hidden: true }, "Nothing matches.");
  const search = element("input", {
    id: "search",
    type: "search",
    autocomplete: "off",
    placeholder: "a path, a field, a word",
  });
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const operation of operations) operation.box.hidden = !words.every((word) => operation.text.includes(word));
    none.hidden = operations.some(({ box }) => !box.hidden);
  });
  const { title, summary, version } = described.info;
  byId("main").replaceChildren(
    element(
      "div",
      { class: "docs" },
      element("h2", {}, `The API of ${title} ${version}`),
      element(
        "p",
        {},
        `${summary} `,
        element("a", { href: "openapi.json" }, "openapi.json"),
        " has the same for programs.",
      ),
      element("div", { class: "search" }, element("label", { for: "search" }, "Search"), search),
      operations.map(({ box }) => box),
      none,
    ),
  );
  const follow = () => operations.find(({ id }) => id === location.hash.slice(1))?.open();
  addEventListener("hashchange", follow);
  follow();
}

async function load() {
  try {
    build(await server.json("openapi.json"));
    tell("");
    byId("key-button").hidden = !server.key; // the document needs a key where the server has keys
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    tell(error.message);
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
load();
