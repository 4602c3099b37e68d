// The list of conversations: search, open, rename, delete, export, import.

import { element } from "../dom.js";
import { titleOf } from "./conversation.js";
import { download, exported, imported } from "./transfer.js";

/**
 * `actions`: open(id), rename(id, title), remove(id), close(), tell(text); `live(id)` is a conversation that is being
 * written, `fields()` are the request fields that an import may have.
 */
export class History {
  constructor(store, actions) {
    Object.assign(this, { store, actions, current: null });
    this.search = element("input", {
      type: "search",
      placeholder: "Search",
      "aria-label": "Search conversations",
      oninput: () => this.refresh(),
    });
    this.list = element("ul", { class: "list", "aria-label": "Conversations" });
    this.none = element("p", { class: "hint", role: "status" });
    this.picker = element("input", {
      type: "file",
      accept: "application/json,.json",
      hidden: true,
      "aria-label": "File to import",
    });
    this.picker.addEventListener("change", () => this.#import());
    const button = (name, onclick) => element("button", { type: "button", onclick }, name);
    this.root = element(
      "aside",
      { class: "history", "aria-label": "Conversations", id: "chat-history" },
      element("div", { class: "side-bar" }, element("h2", {}, "Conversations"), button("Close", actions.close)),
      this.search,
      this.list,
      this.none,
      element(
        "div",
        { class: "row" },
        button("Export all", () => this.#exportAll()),
        button("Import", () => this.picker.click()),
        this.picker,
      ),
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
    const open = element(
      "button",
      {
        id: `chat-of-${head.id}`,
        type: "button",
        class: "open",
        dir: "auto",
        title: head.title,
        onclick: () => this.actions.open(head.id),
      },
      head.title,
    );
    if (head.id === this.current) open.setAttribute("aria-current", "true");
    const item = element("li", {}, open);
    const tool = (name, sign, onclick) =>
      element(
        "button",
        { type: "button", class: "quiet", "aria-label": name, "aria-describedby": open.id, title: name, onclick },
        sign,
      );
    item.append(
      tool("Rename", "✎", () => this.#rename(head, item)),
      tool("Export", "⤓", () => this.#export([head.id])),
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

  async #exportAll() {
    await this.#export((await this.store.heads()).map(({ id }) => id));
  }

  async #export(ids) {
    const found = await Promise.all(ids.map((id) => this.actions.live(id) ?? this.store.load(id)));
    const conversations = found.filter(Boolean);
    const name = conversations.length === 1 ? conversations[0].head.title : "conversations";
    download(`noria-${name.replace(/[^\p{L}\p{N}]+/gu, "-")}.json`, exported(conversations));
  }

  async #import() {
    const [file] = this.picker.files;
    if (!file) return;
    try {
      const conversations = await imported(file, this.actions.fields());
      for (const conversation of conversations) await this.store.add(conversation);
      this.actions.tell(`Imported: ${conversations.length}.`);
    } catch (error) {
      this.actions.tell(`Nothing was imported: ${error.message}.`);
    }
    this.picker.value = "";
    this.refresh();
  }
}
