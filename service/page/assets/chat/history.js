// The list of conversations: search, open, rename, delete, export, import.

import { element } from "../dom.js";
import { titleOf } from "./conversation.js";

/** `actions`: open(id), rename(id, title), remove(id), exportOne(id), exportAll(), importFile(file), close(). */
export class History {
  constructor(store, actions) {
    Object.assign(this, { store, actions, current: null });
    this.search = element("input", { type: "search", placeholder: "Search", "aria-label": "Search conversations", oninput: () => this.refresh() });
    this.list = element("ul", { class: "list", "aria-label": "Conversations" });
    this.none = element("p", { class: "hint", role: "status" });
    this.picker = element("input", { type: "file", accept: "application/json,.json", hidden: true, "aria-label": "File to import" });
    this.picker.addEventListener("change", () => this.#import());
    const button = (name, onclick) => element("button", { type: "button", onclick }, name);
    this.root = element(
      "aside",
      { class: "history", "aria-label": "Conversations", id: "chat-history" },
      element("div", { class: "side-bar" }, element("h2", {}, "Conversations"), button("Close", actions.close)),
      this.search,
      this.list,
      this.none,
      element("div", { class: "row" }, button("Export all", actions.exportAll), button("Import", () => this.picker.click()), this.picker),
    );
  }

  /** Draw the list anew. A slower earlier search never draws over a later one. */
  async refresh(current = this.current) {
    this.current = current;
    const text = this.search.value.trim();
    const round = (this.round = (this.round ?? 0) + 1);
    const [heads, found] = await Promise.all([this.store.heads(), text ? this.store.search(text) : null]);
    if (round !== this.round || this.renaming) return;
    const shown = heads.filter(({ id }) => !found || found.has(id));
    this.list.replaceChildren(...shown.map((head) => this.#item(head)));
    this.none.textContent = shown.length ? "" : text ? "Nothing found." : "No conversations yet.";
  }

  #item(head) {
    const open = element("button", { type: "button", class: "open", title: head.title, onclick: () => this.actions.open(head.id) }, head.title);
    if (head.id === this.current) open.setAttribute("aria-current", "true");
    const item = element("li", {}, open);
    const tool = (name, sign, onclick) =>
      element("button", { type: "button", class: "quiet", "aria-label": `${name} ${head.title}`, title: name, onclick }, sign);
    item.append(
      tool("Rename", "✎", () => this.#rename(head, item)),
      tool("Export", "⤓", () => this.actions.exportOne(head.id)),
      tool("Delete", "×", () => {
        if (confirm(`Delete “${head.title}”? This cannot be undone.`)) this.actions.remove(head.id);
      }),
    );
    return item;
  }

  #rename(head, item) {
    this.renaming = true;
    const input = element("input", { "aria-label": "New title", maxlength: "200" });
    input.value = head.title;
    const end = (title) => {
      if (!this.renaming) return;
      this.renaming = false;
      if (title !== null) this.actions.rename(head.id, titleOf(title));
      this.refresh();
    };
    input.addEventListener("blur", () => end(input.value));
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) end(input.value);
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end(null);
    });
    item.replaceChildren(input);
    input.select();
  }

  #import() {
    const [file] = this.picker.files;
    this.picker.value = "";
    if (file) this.actions.importFile(file);
  }
}
