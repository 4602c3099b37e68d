// A request as a command for a shell and as a program in Python. A key is never in them.

const VARIABLE = "NORIA_API_KEY";
/** The parameters of the Python package `openai`. It takes all others in `extra_body`. */
const OPENAI_FIELDS = new Set(
  `model messages frequency_penalty logit_bias logprobs max_completion_tokens max_tokens n parallel_tool_calls
  presence_penalty reasoning_effort response_format seed stop stream stream_options temperature tool_choice tools
  top_logprobs top_p user`.split(/\s+/),
);

/** A curl command. The JSON is a here-document: a shell changes nothing in it, and it may have any length. */
export function asCurl(server, body) {
  const key = server.key ? ` \\\n  -H "authorization: Bearer $${VARIABLE}"` : "";
  const url = server.url("v1/chat/completions").replaceAll("'", "%27");
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
export function asPython(server, body) {
  const known = Object.entries(body).filter(([name]) => OPENAI_FIELDS.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !OPENAI_FIELDS.has(name)));
  const key = server.key ? `os.environ["${VARIABLE}"]` : '"none"';
  return `${server.key ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(server.url("v1"))}, api_key=${key})
stream = client.chat.completions.create(
${[...known, ["extra_body", extra]].map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`;
}
