import { element } from "../dom.js";

/** Fill `root`. `context` has `server` (server.js), `model` (a promise of the model's card) and `tell(text)`. */
export function mount(root, { server, model }) {
  root.append(element("p", {}, "…"));
  return { shown() {}, hidden() {} };
}
