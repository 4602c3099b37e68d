// The request for an answer, from the settings of a conversation and the messages before the answer.

const ALTERNATIVES = 5;
const DELIVERY = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, return_progress: true };

/** An object or a list from the text of a setting. Throws an Error that names the setting. */
export function parsed(text, name, isList) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: this is not JSON (${error.message})`);
  }
  if (isList ? !Array.isArray(value) : value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error(`${name}: expected a JSON ${isList ? "list" : "object"}`);
  }
  return value;
}

/** The fields of the next request besides its messages: those that the person has changed, and no others. */
export function fieldsOf(head, card) {
  const fields = { model: card.id, ...head.fields };
  if (head.schema.trim()) {
    const schema = parsed(head.schema, "JSON schema", false);
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if (head.tools.trim()) fields.tools = parsed(head.tools, "Tools", true);
  if (head.scores) Object.assign(fields, { logprobs: true, top_logprobs: ALTERNATIVES });
  return fields;
}

function callJson({ id, name, arguments: text }) {
  return { id, type: "function", function: { name, arguments: text } };
}

function assistantJson({ content, thought, calls }) {
  const message = { role: "assistant", content };
  if (thought) message.reasoning_content = thought;
  if (calls?.length) message.tool_calls = calls.map(callJson);
  return message;
}

function userJson({ content, images }) {
  if (!images?.length) return { role: "user", content };
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: content.trim() ? [...parts, { type: "text", text: content }] : parts };
}

function messageJson(node) {
  if (node.role === "user") return userJson(node);
  if (node.role === "tool") return { role: "tool", tool_call_id: node.callId, content: node.content };
  return assistantJson(node);
}

/** The start of an answer that the request continues. A thought without an answer stays open. */
function continuedJson({ content, thought }) {
  if (content || !thought) return assistantJson({ content, thought });
  return { role: "assistant", content: [{ type: "thinking", thinking: thought, closed: false }] };
}

const isEmpty = (node) => node.role === "assistant" && !node.content && !node.calls?.length;

/**
 * The body of a request.
 * @param {{system: string, fields: object, continued: object | null}} sent  What a node keeps of its request.
 * @param {import("./conversation.js").Node[]} before  The nodes before the answer. Answers without text are left out.
 */
export function bodyOf({ system, fields, continued }, before) {
  const messages = before.filter((node) => !isEmpty(node)).map(messageJson);
  if (system.trim()) messages.unshift({ role: "system", content: system });
  if (continued) messages.push(continuedJson(continued));
  const { model, ...others } = fields;
  return { model, messages, ...others, ...(continued ? { continue_final_message: true } : {}), ...DELIVERY };
}
