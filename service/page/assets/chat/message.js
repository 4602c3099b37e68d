// One message on screen.

import { asCurl, asPython } from "../code.js";
import { CopyButton } from "../copy.js";
import { Component, createRef, html, sends, useLayoutEffect, useRef } from "../html.js";
import { Tokens } from "../tokens.js";
import { versions } from "./conversation.js";
import { costOf, endingOf } from "./ending.js";
import { Markdown } from "./markdown.js";
import { Media } from "./media.js";
import { endpointOf, modelOf } from "./request.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };

const isWritten = ({ state }) => ["waiting", "writing"].includes(state);

/**
 * A message. `last`: whether the branch ends with it; `scores`: whether tokens are coloured; `n`: how many alternatives
 * it has; `running`: whether an answer of the conversation is written; `named`: whether answers show their model.
 */
export class Message extends Component {
  foot = createRef();

  /** Only an answer that is written changes by itself: a long conversation is not drawn again with each token. */
  shouldComponentUpdate(props, state) {
    const same = Object.keys(props).every((name) => props[name] === this.props[name]);
    return !same || state !== this.state || isWritten(props.node);
  }

  render({ node, view, n, running }, { editing }) {
    const edit = () => this.setState({ editing: true });
    return html`<article class="message ${node.role}" id="message-${node.id}" aria-busy=${running && isWritten(node)}>
      <h2 class="unseen">${NAMES[node.role]}</h2>
      <div class="body">${this.body(editing)}</div>
      <div class="foot" ref=${this.foot}>
        ${
          editing
            ? html`<button type="button" class="quiet" onclick=${() => this.cancel()}>Cancel</button>
              <button class="main" onclick=${() => this.save()}>Send again</button>`
            : html`<${Buttons} ...${{ node, view, n, running, edit }} />`
        }
      </div>
    </article>`;
  }

  body(editing) {
    const { node } = this.props;
    if (node.role === "assistant") return html`<${Answer} ...${this.props} />`;
    if (editing) {
      return html`<textarea aria-label="Your text" rows="3" dir="auto" defaultValue=${node.content} ref=${this.opened}
        onkeydown=${(event) => this.key(event)}></textarea>`;
    }
    return html`
      ${node.role === "tool" && html`<div class="label">Result</div>`}
      ${node.images?.map((url, at) => html`<${Media} url=${url} at=${at} />`)}
      <div class="text" dir="auto">${node.content}</div>`;
  }

  opened = (input) => {
    this.input = input;
    input?.focus();
  };

  key(event) {
    if (event.key === "Escape") this.cancel();
    else if (sends(event)) this.save();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  cancel() {
    const focus = () => this.foot.current.querySelector("button:not(.switch button)")?.focus();
    this.setState({ editing: false }, focus);
  }

  save() {
    const { value } = this.input;
    this.setState({ editing: false });
    this.props.view.edit(this.props.node, value);
  }
}

/** What one can do with a message, after what an answer has cost. */
function Buttons({ node, view, n, running, edit }) {
  const cost = node.role === "assistant" && !isWritten(node) && costOf(node);
  const code = (write) => () => write(view.server, endpointOf(node.sent), view.bodyOf(node));
  return html`
    ${cost && html`<span class="cost" title=${cost.more}>${cost.text}</span>`}
    ${n > 1 && html`<${Switch} node=${node} view=${view} />`}
    ${
      node.role === "user" &&
      html`<button type="button" class="quiet" onclick=${edit} disabled=${running}>Edit</button>`
    }
    ${node.content && html`<${CopyButton} name="Copy" text=${() => node.content} />`}
    ${
      node.role === "assistant" &&
      html`<button type="button" class="quiet" onclick=${() => view.regenerate(node)} disabled=${running}>
        Regenerate
      </button>`
    }
    ${
      node.sent &&
      html`<${CopyButton} name="Copy as curl" text=${code(asCurl)} />
        <${CopyButton} name="Copy as Python" text=${code(asPython)} />`
    }`;
}

/** "‹ 2 / 3 ›": the alternatives of a message. */
function Switch({ node, view }) {
  const all = versions(view.conversation).get(node.parent);
  const at = all.findIndex(({ id }) => id === node.id);
  const step = (by, name, sign) =>
    html`<button type="button" class="quiet" aria-label=${name} title=${name} disabled=${!all[at + by]}
      onclick=${() => view.pick(all[at + by])}>${sign}</button>`;
  return html`<span class="switch" role="group" aria-label="Versions">
    ${step(-1, "Earlier version", "‹")}<span>${at + 1} / ${all.length}</span>${step(1, "Later version", "›")}
  </span>`;
}

/** The parts of an answer: thought, text or tokens, calls, and how it ended. */
function Answer({ node, view, running, last, scores, named }) {
  const ending = endingOf(node, running, last);
  const run = { Continue: () => view.goOn(node), Retry: () => view.retry(node) };
  const notice = node.notice || (node.state === "waiting" && "Waiting for the first token.");
  return html`
    ${named && html`<div class="label">${modelOf(node)}</div>`}
    <details class="thought" hidden=${!node.thought}>
      <summary>${node.state === "writing" && !node.content ? "Thinking…" : "Thought"}</summary>
      ${node.thought && html`<${Text} text=${node.thought} />`}
    </details>
    <div class="content">${content(node, scores)}</div>
    <div class="calls"><${Calls} ...${{ node, view, open: last && !running && node.state === "done" }} /></div>
    <p class="notice" hidden=${!running || node.state === "done" || !notice}>${notice}</p>
    <div class="ending ${ending?.kind ?? ""}">
      ${ending && html`<span>${ending.text}</span>`}
      ${ending?.offers.map(
        (name) => html`<button type="button" onclick=${run[name]} disabled=${running}>${name}</button>`,
      )}
    </div>`;
}

/** Colours where there are probabilities; a raw completion as it is; else markdown. */
function content(node, scores) {
  if (node.scores?.length && scores) return html`<${Tokens} scores=${node.scores} />`;
  if (node.sent?.raw) return html`<div class="text" dir="auto">${node.content}</div>`;
  return html`<${Text} text=${node.content} />`;
}

function Text({ text }) {
  const box = useRef();
  const markdown = useRef();
  useLayoutEffect(() => {
    markdown.current ??= new Markdown(box.current);
    markdown.current.show(text);
  }, [text]);
  return html`<div class="markdown" dir="auto" ref=${box}></div>`;
}

/** The tool calls of an answer. The person plays the tool: the results go into the cards while they are `open`. */
function Calls({ node, view, open }) {
  const { calls = [] } = node;
  const send = ({ currentTarget }) => {
    const inputs = currentTarget.parentElement.querySelectorAll("textarea");
    view.sendResults(
      node,
      calls.map(({ id }, at) => ({ callId: id, content: inputs[at].value })),
    );
  };
  return html`
    ${calls.map(
      (call, at) => html`<div class="call">
        <div class="label">Calls <strong>${call.name}</strong></div>
        <pre tabindex="0" role="group" aria-label="Arguments">${pretty(call.arguments)}</pre>
        ${
          open &&
          html`<label for="call-${node.id}-${at}">Result of ${call.name}</label>
            <textarea id="call-${node.id}-${at}" rows="2"></textarea>`
        }
      </div>`,
    )}
    ${open && calls.length > 0 && html`<button type="button" class="main" onclick=${send}>Send the results</button>`}`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still being written
  }
}
