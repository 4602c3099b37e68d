// Copying to the clipboard, on origins that are not secure too.

import { element } from "../dom.js";

const SHOWN_MS = 1500;

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element("textarea", { class: "unseen", "aria-hidden": "true" }); // http:// on another machine
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser refused");
}

/** A button that copies `text()` and says that it did. */
export function copyButton(name, text) {
  const button = element("button", { type: "button", class: "quiet" }, name);
  button.addEventListener("click", async () => {
    try {
      await copy(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => (button.textContent = name), SHOWN_MS);
  });
  return button;
}
