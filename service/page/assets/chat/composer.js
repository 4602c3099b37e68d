// The text box, its images, and the buttons Send and Stop.

import { can } from "../card.js";
import { Component, createRef, html } from "../html.js";

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

/** Calls `view.send(text, images)`, `view.stop()` and `view.tell(text)`. `card` is the model's, once it is known. */
export class Composer extends Component {
  input = createRef();
  picker = createRef();
  state = { images: [] };

  componentDidMount() {
    this.input.current.value = sessionStorage.getItem(DRAFT) ?? "";
    this.fit();
  }

  fit() {
    const { current: input } = this.input;
    input.style.height = "auto";
    input.style.height = `${Math.min(TALLEST, input.scrollHeight + 2)}px`;
  }

  changed() {
    sessionStorage.setItem(DRAFT, this.input.current.value);
    this.fit();
  }

  key(event) {
    // Safari ends a composition before its keydown, with key code 229.
    const composing = event.isComposing || event.keyCode === 229;
    if (event.key === "Enter" && !event.shiftKey && !composing) this.submit(event);
  }

  submit(event) {
    event.preventDefault();
    const { images } = this.state;
    const { value } = this.input.current;
    if (this.props.running || !(value.trim() || images.length) || !this.props.view.send(value, images)) return;
    this.input.current.value = "";
    this.setState({ images: [] });
    this.changed();
  }

  take(event, data) {
    const files = [...(data?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    this.add(files);
  }

  async add(files) {
    const { view, card } = this.props;
    if (!can(card, "vision")) {
      return view.tell(card.capabilities ? "This model takes no images." : "The model is not loaded yet.");
    }
    const added = [];
    for (const file of files) {
      if (!TYPES.includes(file.type)) view.tell(`${file.name}: expected an image (PNG, JPEG, WebP or GIF).`);
      else if (file.size > LARGEST)
        view.tell(`${file.name}: an image has at most ${LARGEST} bytes, this one ${file.size}.`);
      else added.push(await dataUrl(file));
    }
    this.setState(({ images }) => ({ images: [...images, ...added] }));
    this.input.current.focus();
  }

  async pick({ currentTarget: picker }) {
    await this.add([...picker.files]);
    picker.value = "";
  }

  image(url, at) {
    const name = `Remove image ${at + 1}`;
    const remove = () => this.setState(({ images }) => ({ images: images.toSpliced(at, 1) }));
    return html`<span>
      <img src=${url} alt="Image ${at + 1}" />
      <button type="button" aria-label=${name} title=${name} onclick=${remove}>×</button>
    </span>`;
  }

  render({ view, card, running }, { images }) {
    return html`<form class="composer" onsubmit=${(event) => this.submit(event)}
      ondragover=${(event) => event.preventDefault()} ondrop=${(event) => this.take(event, event.dataTransfer)}>
      <label for="chat-input" class="unseen">Message</label>
      <div class="shelf" hidden=${!images.length}>${images.map((url, at) => this.image(url, at))}</div>
      <div class="row">
        <button type="button" hidden=${!can(card, "vision")} onclick=${() => this.picker.current.click()}>
          Add image
        </button>
        <input type="file" accept=${TYPES.join()} multiple hidden aria-hidden="true" ref=${this.picker}
          onchange=${(event) => this.pick(event)} />
        <textarea id="chat-input" rows="1" dir="auto" placeholder="Ask something" enterkeyhint="send"
          aria-describedby="chat-hint" ref=${this.input} oninput=${() => this.changed()}
          onkeydown=${(event) => this.key(event)}
          onpaste=${(event) => this.take(event, event.clipboardData)}></textarea>
        <button type="submit" class="main" hidden=${running}>Send</button>
        <button type="button" class="main" hidden=${!running} onclick=${() => view.stop()}>Stop</button>
      </div>
      <p id="chat-hint" class="hint">Enter sends, Shift-Enter breaks the line, Escape stops.</p>
      <p class="hint" hidden=${!card.description}>${card.description && `${card.id}: ${card.description}`}</p>
    </form>`;
  }
}
