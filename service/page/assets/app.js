// The frame of the page: views, key, colours, and what is known of the server.

import { mount as mountChat } from "./chat/view.js";
import { mount as mountDocs } from "./docs/view.js";
import { askForKey } from "./key.js";
import { drawMenu } from "./menu.js";
import { Model } from "./model.js";
import { Server } from "./server.js";
import { setUpTheme } from "./theme.js";
import { mount as mountWheel } from "./wheel/view.js";

const byId = (id) => document.getElementById(id);

/** Show one view by the address: /docs, or the fragment at /. A view is mounted when it is first visible. */
function setUpViews(context) {
  const mounts = { chat: mountChat, wheel: mountWheel, docs: mountDocs };
  const views = {};
  let current = null;
  const show = () => {
    const fragment = location.hash.slice(1) || "chat"; // Back may lead to the address without a fragment
    const path = location.pathname.endsWith("/docs") ? "docs" : fragment;
    const name = Object.hasOwn(mounts, path) ? path : (current ?? "chat");
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

const server = new Server((message) => {
  byId("key-button").hidden = false;
  return askForKey(message);
});
const tell = (text) => {
  const line = byId("model");
  if (line.textContent !== text) line.textContent = text; // a screen reader reads what changes
};
const model = new Model(server, tell, () => drawMenu(byId("models"), model));
const connect = () => model.renewed().catch(() => {}); // the header tells why

byId("key-button").hidden = !server.key;
byId("key-button").addEventListener("click", async () => {
  const key = await askForKey("");
  if (key === null) return;
  server.key = key;
  await connect();
});

setUpTheme(byId("theme-button"));
setUpViews({ server, model });
connect();
