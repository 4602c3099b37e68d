// The dialog that asks for the key of the server.

import { html, render } from "./html.js";

/** Ask for the key. Resolves to it, or to null after Cancel. */
export function askForKey(message) {
  const box = document.createElement("div");
  document.body.append(box);
  return new Promise((resolve) => {
    const close = ({ currentTarget: dialog }) => {
      const key = dialog.querySelector("input").value.trim();
      box.remove();
      resolve(dialog.returnValue === "use" ? key : null);
    };
    const form = html`<dialog id="key-dialog" aria-labelledby="key-title" onclose=${close}>
      <form method="dialog">
        <h2 id="key-title">This server needs a key</h2>
        <p id="key-error" role="alert">${message}</p>
        <label for="key-input">API key</label>
        <input id="key-input" type="password" autocomplete="off" spellcheck=${false} required />
        <p>The key stays in this tab. Closing the tab forgets it.</p>
        <menu>
          <button type="submit" value="use">Use this key</button>
          <button type="submit" value="cancel" formnovalidate>Cancel</button>
        </menu>
      </form>
    </dialog>`;
    render(form, box);
    box.firstChild.showModal();
  });
}
