// The dialog that asks for the key of the server.

import { element } from "./dom.js";

let dialog = null; // made when it is first needed; a page has one

/** Ask for the key. Resolves to it, or to null after Cancel. */
export function askForKey(message) {
  dialog ??= build();
  const input = dialog.querySelector("input");
  dialog.querySelector("#key-error").textContent = message;
  input.value = "";
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "use" ? input.value.trim() : null), {
      once: true,
    });
  });
}

function build() {
  const input = { id: "key-input", type: "password", autocomplete: "off", spellcheck: "false", required: true };
  const made = element(
    "dialog",
    { id: "key-dialog", "aria-labelledby": "key-title" },
    element(
      "form",
      { method: "dialog" },
      element("h2", { id: "key-title" }, "This server needs a key"),
      element("p", { id: "key-error", role: "alert" }),
      element("label", { for: "key-input" }, "API key"),
      element("input", input),
      element("p", {}, "The key stays in this tab. Closing the tab forgets it."),
      element(
        "menu",
        {},
        element("button", { type: "submit", value: "use" }, "Use this key"),
        element("button", { type: "submit", value: "cancel", formnovalidate: true }, "Cancel"),
      ),
    ),
  );
  document.body.append(made);
  return made;
}
