// The request for an answer, from the settings of a conversation and the messages before the answer.

import { can } from "../card.js";
import { CHAT, COMPLETIONS } from "../code.js";

/** The request fields that a person can change, for chat and raw completions. */
export const NAMES = `temperature top_p top_k min_p max_tokens seed presence_penalty frequency_penalty
  repetition_penalty stop min_tokens prompt_lookup_num_tokens reasoning_effort thinking_token_budget tool_choice
  priority timeout`.split(/\s+/);
/** Fields of chat alone, with the ability that they need: raw completions do not take them. */
export const CHAT_ONLY = { reasoning_effort: "reasoning", thinking_token_budget: "reasoning", tool_choice: "tools" };
const ALTERNATIVES = 5;
const WIDE = 0.9; // top_p
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

/** The page's own limit of an answer: a model that repeats itself would write to the end of its context. */
export function limitOf(card) {
  return Math.min(can(card, "reasoning") ? 4096 : 1024, Math.floor((card.max_model_len ?? Infinity) / 2));
}

/**
 * The parameters of another answer to the same messages. The model's own top_p may leave one token to choose from (the
 * embedded model's is 0.3), and any seed then gives the same text. A person's seed gives a series that can be repeated.
 */
function varied({ seed, top_p: given }, card, before) {
  const wider = given === undefined ? { top_p: Math.max(card.defaults?.top_p ?? 0, WIDE) } : {};
  return seed === undefined ? wider : { ...wider, seed: seed + before };
}

/**
 * The fields of the next request besides its messages. Fields that the person has not changed keep the server's
 * defaults, but for the limit, which `limited` false leaves out. `before`: how many answers came before this one.
 */
export function fieldsOf(head, card, { limited = true, before = 0 } = {}) {
  const limit = limited ? { max_tokens: Math.max(limitOf(card), head.fields.min_tokens ?? 0) } : {};
  const fields = { model: card.id, ...limit, ...head.fields, ...(before ? varied(head.fields, card, before) : {}) };
  if (head.raw) {
    for (const name in CHAT_ONLY) delete fields[name];
    return { ...fields, ...(head.scores ? { logprobs: ALTERNATIVES } : {}) };
  }
  if (head.schema.trim()) {
    const schema = parsed(head.schema, "JSON schema", false);
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if (head.tools.trim()) fields.tools = parsed(head.tools, "Tools", true);
  if (head.scores) Object.assign(fields, { logprobs: true, top_logprobs: ALTERNATIVES });
  return fields;
}

/** Whether a data URL holds a recording. */
export const isAudio = (url) => url.startsWith("data:audio/");

function callJson({ id, name, arguments: text }) {
  return { id, type: "function", function: { name, arguments: text } };
}

function assistantJson({ content, thought, calls }) {
  const message = { role: "assistant", content };
  if (thought) message.reasoning_content = thought;
  if (calls?.length) message.tool_calls = calls.map(callJson);
  return message;
}

function mediaJson(url) {
  if (isAudio(url)) return { type: "input_audio", input_audio: { data: url } };
  return { type: "image_url", image_url: { url } };
}

function userJson({ content, images }) {
  if (!images?.length) return { role: "user", content };
  const parts = images.map(mediaJson);
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

/** The model that a node's request named. */
export const modelOf = ({ sent }) => sent?.fields?.model;

const isEmpty = (node) => node.role === "assistant" && !node.content && !node.calls?.length;

/** The endpoint (code.js) that a node's request went to. */
export const endpointOf = ({ raw }) => (raw ? COMPLETIONS : CHAT);

/**
 * The body of a request.
 * @param {{raw: boolean, system: string, fields: object, continued: object | null}} sent  What a node keeps of its
 *   request.
 * @param {import("./conversation.js").Node[]} before  The nodes before the answer. Answers without text are left out.
 */
export function bodyOf({ raw, system, fields, continued }, before) {
  const { model, ...others } = fields;
  if (raw) {
    const prompt = [...before, continued].map((node) => node?.content ?? "").join("");
    return { model, prompt, ...others, ...DELIVERY };
  }
  const messages = before.filter((node) => !isEmpty(node)).map(messageJson);
  if (system.trim()) messages.unshift({ role: "system", content: system });
  if (continued) messages.push(continuedJson(continued));
  return { model, messages, ...others, ...(continued ? { continue_final_message: true } : {}), ...DELIVERY };
}
