// A request as a command for a shell and as a program in Python. A key is never in them.

const VARIABLE = "NORIA_API_KEY";
const SHARED =
  `model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options temperature
  top_p user`.split(/\s+/);
const OF_CHAT = `messages max_completion_tokens parallel_tool_calls reasoning_effort response_format tool_choice tools
  top_logprobs`.split(/\s+/);

/**
 * How a request to an endpoint is written: its path, the method of the Python package `openai` with the parameters that
 * it takes (all others go into `extra_body`), and where a chunk has its text.
 */
export const CHAT = {
  path: "v1/chat/completions",
  method: "chat.completions.create",
  parameters: new Set([...SHARED, ...OF_CHAT]),
  text: 'chunk.choices[0].delta.content or ""',
};
export const COMPLETIONS = {
  path: "v1/completions",
  method: "completions.create",
  parameters: new Set([...SHARED, "prompt"]),
  text: "chunk.choices[0].text",
};

/** A curl command. The JSON is a here-document: a shell changes nothing in it, and it may have any length. */
export function asCurl(server, { path }, body) {
  const key = server.key ? ` \\\n  -H "authorization: Bearer $${VARIABLE}"` : "";
  const url = server.url(path).replaceAll("'", "%27");
  const json = JSON.stringify(body, null, 2);
  return `curl -N '${url}' \\\n  -H 'content-type: application/json'${key} \\\n  --data-binary @- <<'JSON'\n${json}\nJSON\n`;
}

const WORDS = new Map([
  [true, "True"],
  [false, "False"],
  [null, "None"],
]);

/** A value of JSON as Python writes it. A JSON string is a Python string. */
function python(value, indent) {
  if (value === null || typeof value === "boolean") return WORDS.get(value);
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const list = Array.isArray(value);
  const items = list
    ? value.map((item) => inner + python(item, inner))
    : Object.entries(value).map(([name, item]) => `${inner}${JSON.stringify(name)}: ${python(item, inner)}`);
  const [open, close] = list ? "[]" : "{}";
  return items.length ? `${open}\n${items.join(",\n")},\n${indent}${close}` : open + close;
}

/** A program for the Python package `openai`. */
export function asPython(server, { method, parameters, text }, body) {
  const known = Object.entries(body).filter(([name]) => parameters.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !parameters.has(name)));
  const named = Object.keys(extra).length ? [...known, ["extra_body", extra]] : known;
  const key = server.key ? `os.environ["${VARIABLE}"]` : '"none"';
  return `${server.key ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(server.url("v1"))}, api_key=${key})
stream = client.${method}(
${named.map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("")})
for chunk in stream:
    if chunk.choices:
        print(${text}, end="", flush=True)
print()
`;
}
