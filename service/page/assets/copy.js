// Copying to the clipboard, on origins that are not secure too.

import { html, useState } from "./html.js";

const SHOWN_MS = 1500;

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // http:// on another machine
  area.className = "unseen";
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser refused");
}

/** A button that copies `text()` and says that it did. */
export function CopyButton({ name, text }) {
  const [said, say] = useState(null);
  const onclick = async () => {
    try {
      await copy(text());
      say("Copied");
    } catch {
      say("Not copied");
    }
    setTimeout(() => say(null), SHOWN_MS);
  };
  return html`<button type="button" class="quiet" onclick=${onclick}>${said ?? name}</button>`;
}
