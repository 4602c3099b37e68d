// The list of conversations: search, open, rename, delete, export, import.

import { Component, createRef, html } from "../html.js";
import { titleOf } from "./conversation.js";
import { download, exported, imported } from "./transfer.js";

export class History extends Component {
  search = createRef();
  picker = createRef();
  state = { heads: [], none: "", renamed: null };
  round = 0;

  componentDidMount() {
    this.props.view.history = this;
  }

  /** Read the list anew. A slower earlier search never draws over a later one. */
  async refresh() {
    const { store } = this.props.view;
    const text = this.search.current.value.trim();
    const round = ++this.round;
    const [all, found] = await Promise.all([store.heads(), text ? store.search(text) : null]);
    if (round !== this.round) return;
    const heads = all.filter(({ id }) => !found || found.has(id));
    this.setState({ heads, none: heads.length ? "" : text ? "Nothing found." : "No conversations yet." });
  }

  rename(head, title) {
    if (!this.state.renamed) return;
    this.setState({ renamed: null });
    this.state.renamed = null; // the input's blur follows at once
    if (title !== null) this.props.view.rename(head.id, titleOf(title));
  }

  async export(ids) {
    const { session, store } = this.props.view;
    const found = await Promise.all(ids.map((id) => session.live(id) ?? store.load(id)));
    const conversations = found.filter(Boolean);
    const name = conversations.length === 1 ? conversations[0].head.title : "conversations";
    download(`noria-${name.replace(/[^\p{L}\p{N}]+/gu, "-")}.json`, exported(conversations));
  }

  async exportAll() {
    await this.export((await this.props.view.store.heads()).map(({ id }) => id));
  }

  async import({ currentTarget: picker }) {
    const { view } = this.props;
    try {
      const conversations = await imported(picker.files[0]);
      for (const conversation of conversations) await view.store.add(conversation);
      view.tell(`Imported: ${conversations.length}.`);
    } catch (error) {
      view.tell(`Nothing was imported: ${error.message}.`);
    }
    picker.value = "";
    this.refresh();
  }

  item(head) {
    const { view } = this.props;
    if (this.state.renamed === head.id) return html`<li key=${head.id}>${this.title(head)}</li>`;
    const tool = (name, sign, onclick) =>
      html`<button type="button" class="quiet" aria-label=${name} aria-describedby="chat-of-${head.id}" title=${name}
        onclick=${onclick}>${sign}</button>`;
    const remove = () => confirm(`Delete “${head.title}”? This cannot be undone.`) && view.remove(head.id);
    return html`<li key=${head.id}>
      <button id="chat-of-${head.id}" type="button" class="open" dir="auto" title=${head.title}
        aria-current=${head.id === view.head.id ? "true" : null} onclick=${() => view.open(head.id)}>
        ${head.title}
      </button>
      ${tool("Rename", "✎", () => this.setState({ renamed: head.id }))}
      ${tool("Export", "⤓", () => this.export([head.id]))}
      ${tool("Delete", "×", remove)}
    </li>`;
  }

  title(head) {
    const key = (event) => {
      if (event.key === "Enter" && !event.isComposing) this.rename(head, event.currentTarget.value);
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.rename(head, null);
    };
    return html`<input aria-label="New title" maxlength="200" defaultValue=${head.title} ref=${select}
      onblur=${({ currentTarget }) => this.rename(head, currentTarget.value)} onkeydown=${key} />`;
  }

  render({ view, hidden }, { heads, none }) {
    return html`<aside class="history" aria-label="Conversations" id="chat-history" hidden=${hidden}>
      <div class="side-bar">
        <h2>Conversations</h2>
        <button type="button" onclick=${() => view.toggle("history", false)}>Close</button>
      </div>
      <input type="search" placeholder="Search" aria-label="Search conversations" ref=${this.search}
        oninput=${() => this.refresh()} />
      <ul class="list" aria-label="Conversations">${heads.map((head) => this.item(head))}</ul>
      <p class="hint" role="status">${none}</p>
      <div class="row">
        <button type="button" onclick=${() => this.exportAll()}>Export all</button>
        <button type="button" onclick=${() => this.picker.current.click()}>Import</button>
        <input type="file" accept="application/json,.json" hidden aria-label="File to import" ref=${this.picker}
          onchange=${(event) => this.import(event)} />
      </div>
    </aside>`;
  }
}

const select = (input) => input?.select();
