// The text of a model as markdown. It is hostile until proven otherwise: its HTML stays text, its images become links
// (loading one would tell another origin what was written), and DOMPurify lets through only what is listed here.

import createPurify from "../vendor/dompurify.js";
import highlight from "../vendor/highlight.js";
import { Marked } from "../vendor/marked.js";
import { CopyButton } from "../copy.js";
import { html, render } from "../html.js";
import { draw, extensions } from "./math.js";

const TAGS = `p br strong em del code pre ul ol li blockquote h3 table thead tbody tr th td a hr span`.split(" ");
const ATTRIBUTES = ["href", "class", "data-language", "data-depth", "data-formula", "start"];
const LONGEST_COLOURED = 30_000; // characters of code

const SAFE_LINK = /^(https?:|mailto:)/i;
const escaped = (text) => String(text).replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
// Outside code an entity is the character that it names, also where HTML stays text.
const decoded = (text) => String(text).replace(/[<>"']|&(?!#?\w+;)/g, escaped);
const link = (href, inner) => (SAFE_LINK.test(href) ? `<a href="${decoded(href)}">${inner}</a>` : inner);

const marked = new Marked({
  gfm: true,
  breaks: true,
  extensions,
  renderer: {
    html: ({ text, block }) => (block ? `<p>${decoded(text)}</p>` : decoded(text)),
    image: ({ href, text }) => link(href, decoded(text || "image")),
    link({ href, tokens }) {
      return link(href, this.parser.parseInline(tokens));
    },
    heading({ tokens, depth }) {
      return `<h3 data-depth="${depth}">${this.parser.parseInline(tokens)}</h3>`; // one level: outlines stay whole
    },
    paragraph({ raw, tokens }) {
      return isJson(raw) ? this.code({ text: raw.trim(), lang: "json" }) : `<p>${this.parser.parseInline(tokens)}</p>`;
    },
    code: ({ text, lang }) => {
      const language = (lang ?? "").split(/\s/)[0];
      return `<pre data-language="${escaped(language)}"><code>${coloured(text, language)}</code></pre>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/** Whether a text is JSON, perhaps without its end: outside its strings JSON has few characters. */
function isJson(text) {
  return /^\s*[{[][\s{}[\],:\d.+\-truefalsnE]*$/.test(text.replace(/"(?:[^"\\\n]|\\.)*(?:"|\\?$)/g, ""));
}

function coloured(text, language) {
  if (!highlight.getLanguage(language) || text.length > LONGEST_COLOURED) return escaped(text);
  return highlight.highlight(text, { language, ignoreIllegals: true }).value;
}

const purify = createPurify(window);
purify.addHook("uponSanitizeAttribute", (_, data) => {
  // The page's own classes must not be borrowed.
  if (data.attrName === "class") data.attrValue = data.attrValue.match(/\b(hljs|tml)-[\w-]+/g)?.join(" ") ?? "";
});

function sanitized(html) {
  const options = { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true };
  return purify.sanitize(html, options);
}

/** Only MathML: `\label` would give ids, `\ref` links. */
function cleanFormula(math) {
  const options = { USE_PROFILES: { mathMl: true }, ADD_ATTR: ["class", "form", "style"], FORBID_ATTR: ["href", "id"] };
  purify.sanitize(math, { ...options, IN_PLACE: true });
}

/** Links open beside the page; wide things scroll in their own box, by keyboard too; code has a button. */
function finish(fragment) {
  for (const anchor of fragment.querySelectorAll("a")) {
    Object.assign(anchor, { target: "_blank", rel: "noopener noreferrer nofollow" });
  }
  for (const code of fragment.querySelectorAll("code[data-formula]")) draw(code, cleanFormula);
  for (const pre of fragment.querySelectorAll("pre")) finishCode(pre);
  for (const table of fragment.querySelectorAll("table")) {
    const wide = scrolled(box("wide"), "Table");
    table.replaceWith(wide);
    wide.append(table);
  }
  return fragment;
}

function finishCode(pre) {
  const language = pre.dataset.language || "text";
  const bar = box("code-bar");
  render(html`${language}<${CopyButton} name="Copy code" text=${() => pre.textContent} />`, bar);
  const code = box("code", bar);
  pre.replaceWith(code);
  code.append(scrolled(pre, `Code: ${language}`));
}

function scrolled(element, label) {
  return Object.assign(element, { tabIndex: 0, role: "group", ariaLabel: label });
}

function box(name, ...children) {
  const made = document.createElement("div");
  made.className = name;
  made.append(...children);
  return made;
}

/** Markdown in an element. While a text grows, only the blocks that change are drawn again. */
export class Markdown {
  constructor(root) {
    this.root = root;
    this.blocks = [];
  }

  show(text) {
    try {
      if (!this.failed) return this.#showBlocks(text);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error; // thousands of nested quotes or lists
      this.failed = true;
    }
    this.root.replaceChildren(box("text", text));
  }

  #showBlocks(text) {
    const tokens = marked.lexer(text);
    let same = 0;
    while (same < this.blocks.length && this.blocks[same] === tokens[same]?.raw) same++;
    while (this.root.children.length > same) this.root.lastChild.remove();
    for (const token of tokens.slice(same)) {
      this.root.append(box("block", finish(sanitized(marked.parser([token])))));
    }
    this.blocks = tokens.map((token) => token.raw);
  }
}
