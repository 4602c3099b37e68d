// Formulas in markdown: $$…$$, \[…\], \(…\), and $…$ where it is no price. Temml writes them as MathML, which browsers draw.

import temml from "../vendor/temml.js";

// As long as a formula may be: drawing takes less than a second, whatever is in it. A longer one stays text, as does one
// that has not come to its end. No pattern below can match a text in two ways.
const PART = {
  $$: String.raw`\$\$(?:\\[^]|[^\\$\n]|\n(?!\s*\n)){1,2000}\$\$(?!\$)`,
  "\\[": String.raw`\\\[(?:\\(?!\])[^]|[^\\\n]|\n(?!\s*\n)){1,2000}\\\](?!\()`,
  "\\(": String.raw`\\\((?:\\(?!\))[^]|[^\\\n]|\n(?!\s*\n)){1,2000}\\\)`,
  $: String.raw`\$(?![\s$])(?:\\[^\n]|[^\\$` + "`" + String.raw`\n]){1,2000}(?<!\s)\$(?![\w$])`,
};
const SPAN = new RegExp(`^(?:${Object.values(PART).join("|")})`);
const BLOCK = new RegExp(`^ {0,3}(?:${PART.$$}|${PART["\\["]})[ \\t]*(?:\\n+|$)`);
const MARKS = /^(\$\$?|\\[[(])|(\$\$?|\\[\])])$/g;
const OPTIONS = { throwOnError: true, trust: false, maxExpand: 200, maxSize: [20, 200] }; // sizes in em and in points

/** Whether what is between two dollars is prose, such as "5 a month, or 50$": words without a sign of mathematics. */
function isProse(source) {
  if (!/\s/.test(source) || /[\\^_=]/.test(source)) return false;
  return /[a-z]{2}/i.test(source) || (/^\d/.test(source) && !/[+*/<>-]/.test(source));
}

function found(match, type) {
  const raw = match?.[0];
  const source = raw?.trim().replace(MARKS, "");
  return raw && !isProse(source) ? { type, raw, source } : undefined;
}

const escaped = (text) => text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
const isDisplay = (raw) => /^\s*(\$\$|\\\[)/.test(raw);
const marked = ({ raw }) =>
  `<code data-formula="${isDisplay(raw) ? "display" : "inline"}">${escaped(raw.trim())}</code>`;

/** What marked needs to find formulas. It leaves each as the text of a `code[data-formula]`, which `draw` replaces. */
export const extensions = [
  {
    name: "formulas",
    level: "block",
    start: (text) => {
      const at = text.search(/\n {0,3}(?:\$\$|\\\[)/);
      return at < 0 ? undefined : at + 1;
    },
    tokenizer: (text) => found(BLOCK.exec(text), "formulas"),
    renderer: (token) => `<p>${marked(token)}</p>`,
  },
  {
    name: "formula",
    level: "inline",
    start: (text) => {
      const at = text.search(/(?<![\\\w$])\$|(?<!\\)\\[[(]/);
      return at < 0 ? undefined : at;
    },
    tokenizer: (text) => found(SPAN.exec(text), "formula"),
    renderer: marked,
  },
];

/** Put MathML in place of a formula's text, which stays if it is wrong. `clean(element)` removes what is not allowed. */
export function draw(code, clean) {
  const display = code.dataset.formula === "display";
  const box = document.createElement("span");
  box.className = `formula ${code.dataset.formula}`;
  try {
    temml.render(code.textContent.replace(MARKS, ""), box, { ...OPTIONS, displayMode: display });
  } catch {
    code.replaceWith(code.textContent);
    return;
  }
  clean(box.firstChild);
  code.replaceWith(box);
  if (!display) return;
  for (const [name, value] of Object.entries({ role: "group", "aria-label": "Formula", tabindex: "0" }))
    box.setAttribute(name, value); // it scrolls, by keyboard too
}
