// A tool call of the model. The person plays the tool: the result goes into the card.

import { element } from "../dom.js";

let cards = 0; // for ids that join labels and fields

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still being written
  }
}

export class CallCard {
  constructor(call) {
    this.call = call;
    const id = `call-${++cards}`;
    this.name = element("strong");
    this.code = element("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" });
    this.input = element("textarea", { id, rows: "2" });
    this.label = element("label", { for: id });
    this.answer = element("div", { hidden: true }, this.label, this.input);
    const title = element("div", { class: "label" }, "Calls ", this.name);
    this.root = element("div", { class: "call" }, title, this.code, this.answer);
  }

  /** `open`: the model waits for the result. */
  update(open) {
    this.name.textContent = this.call.name;
    this.code.textContent = pretty(this.call.arguments);
    this.label.textContent = `Result of ${this.call.name}`;
    this.answer.hidden = !open;
  }

  get result() {
    return { callId: this.call.id, content: this.input.value };
  }
}
