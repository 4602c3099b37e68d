// The frame of the page: views, key, colours, and what is known of the server.

import { mount as mountChat } from "./chat/view.js";
import { mount as mountCompletions } from "./completions/view.js";
import { askForKey } from "./key.js";
import { Server, ServerError } from "./server.js";
import { setUpTheme } from "./theme.js";
import { mount as mountWheel } from "./wheel/view.js";

const RETRY_MS = 1000;
const byId = (id) => document.getElementById(id);

/** Show one view by the address's fragment. A view is mounted when it is first shown. */
function setUpViews(context) {
  const mounts = { chat: mountChat, wheel: mountWheel, completions: mountCompletions };
  const views = {};
  let current = null;
  const show = () => {
    const wanted = location.hash.slice(1) || "chat"; // Back may lead to the address without a fragment
    const name = Object.hasOwn(mounts, wanted) ? wanted : (current ?? "chat");
    if (name === current) return;
    if (current) views[current].hidden?.();
    for (const other of Object.keys(mounts)) byId(`view-${other}`).hidden = other !== name;
    for (const link of document.querySelectorAll("nav a[data-view]")) {
      if (link.dataset.view === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    current = name;
    views[name] ??= mounts[name](byId(`view-${name}`), context);
    views[name].shown?.();
  };
  addEventListener("hashchange", show);
  show();
}

/** The model's card, once the server is ready. `tell` gets a line for the person while it is not. */
async function findModel(server, tell) {
  for (;;) {
    try {
      const { data } = await server.json("v1/models");
      return await server.json(`v1/models/${data[0].id}`);
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      tell(error.message);
      if (error.status === 401) return null;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

const server = new Server(askForKey);
const known = Promise.withResolvers?.() ?? withResolvers();
const tell = (text) => {
  byId("model").textContent = text;
};

function withResolvers() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

async function connect() {
  const model = await findModel(server, tell);
  byId("key-button").hidden = model !== null && !server.key;
  if (model === null) return;
  tell(model.id);
  known.resolve(model);
}

byId("key-button").addEventListener("click", async () => {
  const key = await askForKey("");
  if (key === null) return;
  server.key = key;
  await connect();
});

setUpTheme(byId("theme-button"));
setUpViews({ server, model: known.promise, tell });
connect();
