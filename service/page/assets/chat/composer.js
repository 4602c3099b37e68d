// The text box, its images, and the buttons Send and Stop.

import { can } from "../card.js";
import { element } from "../dom.js";

const DRAFT = "noria-draft"; // in the tab's storage: a reload keeps what was not sent yet
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const LARGEST = 5_000_000; // bytes of an image: a request has room for one such in base64
const TALLEST = 240; // pixels

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** `send(text, images)` and `stop()` are the view's; `tell(text)` shows a line to the person. */
export class Composer {
  constructor({ send, stop, tell }) {
    Object.assign(this, { send, tell, images: [], sees: false, running: false });
    this.input = element("textarea", {
      id: "chat-input",
      rows: "1",
      dir: "auto",
      placeholder: "Ask something",
      enterkeyhint: "send",
      "aria-describedby": "chat-hint",
    });
    this.input.value = sessionStorage.getItem(DRAFT) ?? "";
    this.sendButton = element("button", { type: "submit", class: "main" }, "Send");
    this.stopButton = element("button", { type: "button", class: "main", hidden: true, onclick: stop }, "Stop");
    this.picker = element("input", {
      type: "file",
      accept: TYPES.join(),
      multiple: true,
      hidden: true,
      "aria-hidden": "true",
    });
    this.attach = element(
      "button",
      { type: "button", hidden: true, onclick: () => this.picker.click() },
      "Add image",
    );
    this.shelf = element("div", { class: "shelf", hidden: true });
    const label = element("label", { for: "chat-input", class: "unseen" }, "Message");
    const hint = element(
      "p",
      { id: "chat-hint", class: "hint" },
      "Enter sends, Shift-Enter breaks the line, Escape stops.",
    );
    const row = element(
      "div",
      { class: "row" },
      this.attach,
      this.picker,
      this.input,
      this.sendButton,
      this.stopButton,
    );
    this.about = element("p", { class: "hint", hidden: true });
    this.root = element("form", { class: "composer" }, label, this.shelf, row, hint, this.about);
    this.#listen();
  }

  focus() {
    this.input.focus();
    this.#fit();
  }

  /** Whether an answer is being written. */
  setRunning(running) {
    this.running = running;
    this.sendButton.hidden = running;
    this.stopButton.hidden = !running;
  }

  /** The model of this card answers. */
  know(card) {
    this.sees = can(card, "vision") === true;
    this.attach.hidden = !this.sees;
    this.about.hidden = !card.description;
    this.about.textContent = card.description ? `${card.id}: ${card.description}` : "";
  }

  clear() {
    this.input.value = "";
    this.images = [];
    this.#drawShelf();
    this.#changed();
  }

  #listen() {
    this.input.addEventListener("input", () => this.#changed());
    this.input.addEventListener("keydown", (event) => {
      // Safari ends a composition before its keydown, with key code 229.
      const composing = event.isComposing || event.keyCode === 229;
      if (event.key !== "Enter" || event.shiftKey || composing) return;
      event.preventDefault();
      this.#submit();
    });
    this.root.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.picker.addEventListener("change", () => {
      this.#add([...this.picker.files]);
      this.picker.value = "";
    });
    this.input.addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    this.root.addEventListener("dragover", (event) => event.preventDefault());
    this.root.addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
  }

  #submit() {
    if (this.running || !(this.input.value.trim() || this.images.length)) return;
    if (this.send(this.input.value, this.images)) this.clear();
  }

  #changed() {
    sessionStorage.setItem(DRAFT, this.input.value);
    this.#fit();
  }

  #fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(TALLEST, this.input.scrollHeight + 2)}px`;
  }

  #take(event, data) {
    const files = [...(data?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    if (this.sees) this.#add(files);
    else this.tell("This model takes no images.");
  }

  async #add(files) {
    for (const file of files) {
      if (!TYPES.includes(file.type)) this.tell(`${file.name}: expected an image (PNG, JPEG, WebP or GIF).`);
      else if (file.size > LARGEST)
        this.tell(`${file.name}: an image has at most ${LARGEST} bytes, this one ${file.size}.`);
      else this.images.push(await dataUrl(file));
    }
    this.#drawShelf();
    this.input.focus();
  }

  #drawShelf() {
    this.shelf.hidden = !this.images.length;
    this.shelf.replaceChildren(
      ...this.images.map((url, at) => {
        const name = `Remove image ${at + 1}`;
        const remove = () => {
          this.images.splice(at, 1);
          this.#drawShelf();
        };
        const button = element("button", { type: "button", "aria-label": name, title: name, onclick: remove }, "×");
        return element("span", {}, element("img", { src: url, alt: `Image ${at + 1}` }), button);
      }),
    );
  }
}
