// An image or a recording of a message.

import { html } from "../html.js";
import { isAudio } from "./request.js";

export function Media({ url, at }) {
  if (isAudio(url)) return html`<audio controls src=${url} aria-label="Recording ${at + 1}"></audio>`;
  return html`<img src=${url} alt="Image ${at + 1}" />`;
}
