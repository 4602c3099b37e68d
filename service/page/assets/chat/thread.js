// The branch on screen. It follows the end of the text until the person scrolls away.

import { Component, createRef, html } from "../html.js";
import { pathTo, versions } from "./conversation.js";
import { Message } from "./message.js";
import { modelOf } from "./request.js";

const NEAR = 48; // pixels from the bottom that count as being there
const EXAMPLES = [
  "What is the capital of Japan?",
  "Write a Python function that says whether a number is prime.",
  "Explain in three sentences why the sky is blue.",
];

export class Thread extends Component {
  scroller = createRef();
  list = createRef();

  componentDidMount() {
    const observer = new ResizeObserver(() => this.keepUp());
    for (const { current } of [this.list, this.scroller]) observer.observe(current);
  }

  componentDidUpdate() {
    this.keepUp();
  }

  keepUp() {
    const { current } = this.scroller;
    if (this.props.view.follows) current.scrollTop = current.scrollHeight;
    this.look();
  }

  look() {
    const { view } = this.props;
    const { scrollHeight, scrollTop, clientHeight } = this.scroller.current;
    const follows = scrollHeight - scrollTop - clientHeight < NEAR;
    if (follows === view.follows) return;
    view.follows = follows;
    this.forceUpdate();
  }

  toEnd = () => {
    this.props.view.follows = true;
    this.forceUpdate();
  };

  render({ view, running }) {
    const path = pathTo(view.conversation);
    const all = versions(view.conversation);
    const models = new Set(Array.from(view.conversation.nodes.values(), modelOf).filter(Boolean));
    return html`<div class="thread">
      <div class="scroller" tabindex="-1" ref=${this.scroller} onscroll=${() => this.look()}>
        <div class="empty" hidden=${path.length > 0}>
          <h2>Ask the model anything</h2>
          <p>Conversations stay in this browser. Or start with one of these:</p>
          ${EXAMPLES.map(
            (text) => html`<button type="button" class="example" onclick=${() => view.send(text)}>${text}</button>`,
          )}
        </div>
        <div class="messages" role="log" aria-label="Conversation" aria-live="off" ref=${this.list}>
          ${path.map((node) => {
            const more = { node, view, running, scores: view.head.scores, last: view.head.leaf === node.id };
            const n = all.get(node.parent).length;
            return html`<${Message} key=${node.id} n=${n} named=${models.size > 1} ...${more} />`;
          })}
        </div>
      </div>
      <button type="button" class="latest" hidden=${view.follows} onclick=${this.toEnd}>↓ Latest</button>
    </div>`;
  }
}
