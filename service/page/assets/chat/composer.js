// The text box, its images and recordings, and the buttons Send and Stop.

import { can } from "../card.js";
import { Component, createRef, html, sends, touches } from "../html.js";
import { Media } from "./media.js";
import { Recorder } from "./recorder.js";
import { isAudio } from "./request.js";

const DRAFT = "noria-draft"; // in the tab's storage: a reload keeps what was not sent yet
const IMAGES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const AUDIO = ["audio/wav", "audio/x-wav", "audio/flac", "audio/x-flac", "audio/ogg", "audio/mpeg"];
const LARGEST = 5_000_000; // bytes of a file: a request has room for one such in base64
const TALLEST = 240; // pixels

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

/** A text file as a block of the message; null for a file that is no text. */
async function blockOf(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    const fence = "`".repeat(1 + Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length)));
    return text.includes("\0") ? null : `${file.name}:\n${fence}\n${text.trimEnd()}\n${fence}\n`;
  } catch {
    return null;
  }
}

const isMedia = ({ type }) => [...IMAGES, ...AUDIO].includes(type);
/** What a model needs for a file of this type. */
const needed = (type) => (AUDIO.includes(type) ? "audio" : "vision");

/**
 * Calls `view.send(text, images)`, `view.stop()`, `view.tell(text)` and `view.transcript(url)`. `card` is the model's,
 * once it is known. `images` are data URLs of images and recordings. `level` says how loud a recording is that runs.
 */
export class Composer extends Component {
  input = createRef();
  picker = createRef();
  state = { images: [], level: null, writes: false };

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
    if (sends(event)) this.submit(event);
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
    const { view } = this.props;
    const added = [];
    for (const file of files) {
      const block = isMedia(file) || file.size > LARGEST ? null : await blockOf(file);
      const reason = block === null && this.refusal(file);
      if (reason) view.tell(reason);
      else if (block === null) added.push(await dataUrl(file));
      else this.type(`${/[^\n]$/.test(this.input.current.value) ? "\n" : ""}${block}`);
    }
    this.setState(({ images }) => ({ images: [...images, ...added] }));
    this.input.current.focus();
  }

  /** Why a file cannot go with the message; null if it can. */
  refusal({ name, type, size }) {
    const { card } = this.props;
    if (size > LARGEST) return `${name}: a file has at most ${LARGEST} bytes, this one ${size}.`;
    if (!isMedia({ type })) return `${name}: expected text, PNG, JPEG, WebP, GIF, WAV, FLAC, OGG or MP3.`;
    if (!can(card, needed(type))) {
      if (!card.capabilities) return "The model is not loaded yet.";
      return `This model takes no ${AUDIO.includes(type) ? "audio" : "images"}.`;
    }
    return null;
  }

  /** Begin a recording, or end it and put it on the shelf. */
  async record() {
    const { recorder } = this;
    try {
      // The promise is there before the microphone is: a second click ends this recording, and begins no other.
      this.recorder = recorder ? null : Recorder.start((level, bytes) => this.heard(level, bytes));
      this.setState({ level: recorder ? null : 0 });
      await this.recorder;
      if (recorder) await this.add([new File([await (await recorder).stop()], "The recording", { type: AUDIO[0] })]);
    } catch (error) {
      this.recorder = null;
      this.setState({ level: null });
      this.props.view.tell(`There is no microphone to record from: ${error.message}`);
    }
  }

  /** Show how loud it is, and end the recording when its file has nearly the largest size. */
  heard(level, bytes) {
    if (!this.recorder) return;
    this.setState({ level });
    if (bytes > 0.99 * LARGEST) this.record();
  }

  /** Write text at the end of the text box. */
  type(text) {
    this.input.current.value += text;
    this.changed();
  }

  /** Write the words of a recording into the text box, as they come. */
  async transcribe(url) {
    this.setState({ writes: true });
    for await (const text of this.props.view.transcript(url)) this.type(text);
    this.setState({ writes: false });
  }

  async pick({ currentTarget: picker }) {
    await this.add([...picker.files]);
    picker.value = "";
  }

  item(url, at) {
    const name = `Remove ${isAudio(url) ? "recording" : "image"} ${at + 1}`;
    const remove = () => this.setState(({ images }) => ({ images: images.toSpliced(at, 1) }));
    const words = () => this.transcribe(url);
    const { writes } = this.state;
    return html`<span>
      <${Media} url=${url} at=${at} />
      <button type="button" class="words" hidden=${!isAudio(url)} disabled=${writes} onclick=${words}>Transcribe</button>
      <button type="button" class="remove" aria-label=${name} title=${name} onclick=${remove}>×</button>
    </span>`;
  }

  files() {
    return html`
      <button type="button" onclick=${() => this.picker.current.click()}>Add file</button>
      <input type="file" multiple hidden aria-hidden="true" ref=${this.picker}
        onchange=${(event) => this.pick(event)} />`;
  }

  microphone(card, level) {
    const runs = level !== null;
    return html`
      <button type="button" hidden=${!can(card, "audio")} onclick=${() => this.record()}>
        ${runs ? "Stop recording" : "Record"}
      </button>
      <meter min="0" max="1" value=${level ?? 0} hidden=${!runs} aria-label="Loudness"></meter>`;
  }

  render({ view, card, running }, { images, level }) {
    return html`<form class="composer" onsubmit=${(event) => this.submit(event)}
      ondragover=${(event) => event.preventDefault()} ondrop=${(event) => this.take(event, event.dataTransfer)}>
      <label for="chat-input" class="unseen">Message</label>
      <div class="shelf" hidden=${!images.length}>${images.map((url, at) => this.item(url, at))}</div>
      <div class="row">
        ${this.files()}
        ${this.microphone(card, level)}
        <textarea id="chat-input" rows="1" dir="auto" placeholder="Ask something"
          enterkeyhint=${touches() ? "enter" : "send"} aria-describedby="chat-hint" ref=${this.input}
          oninput=${() => this.changed()} onkeydown=${(event) => this.key(event)}
          onpaste=${(event) => this.take(event, event.clipboardData)}></textarea>
        <button type="submit" class="main" hidden=${running}>Send</button>
        <button type="button" class="main" hidden=${!running} onclick=${() => view.stop()}>Stop</button>
      </div>
      <p id="chat-hint" class="hint" hidden=${touches()}>Enter sends, Shift-Enter breaks the line, Escape stops.</p>
      <p class="hint" hidden=${!card.description}>${card.description && `${card.id}: ${card.description}`}</p>
    </form>`;
  }
}
