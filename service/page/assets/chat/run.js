// One answer: asks the server and writes what comes into a node.

import { isGone } from "../model.js";
import { ServerError } from "../server.js";
import { endpointOf } from "./request.js";

const LONGEST_WAIT = 60; // seconds; a longer Retry-After is an error to read, not a wait

/** Wait until the promise has ended or the signal is aborted. */
function orAborted(promise, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => reject(new DOMException("stopped", "AbortError"));
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

const seconds = (n) => orAborted.bind(null, new Promise((resolve) => setTimeout(resolve, n * 1000)));

/**
 * Fill `node` until its answer ends. Never throws: the node's state says how it ended.
 * `bodyOf(card, limited)` is the request, with the page's own limit or without; `changed()` follows each change of the
 * node. `resumed` is the body of a request that a reload has cut off: the server still writes its answer.
 */
export async function answer({ server, model, node, bodyOf, resumed, signal, changed }) {
  node.state = "waiting";
  node.notice = resumed ? "" : "Waiting until the model is ready.";
  changed();
  try {
    if (resumed) await read({ server, node, body: resumed, resumes: true, signal, changed });
    else await askModel({ server, model, node, bodyOf, signal, changed });
    if (node.state !== "failed") node.state = "done";
  } catch (error) {
    if (error.name === "AbortError" || (resumed && error.status === 404)) node.state = "stopped";
    else fail(node, error);
  }
  node.notice = "";
  changed();
}

/** Ask the model of the server. After a restart that is another one. A long prompt may have no room for the limit. */
async function askModel({ model, bodyOf, ...run }) {
  const askOne = async (card, limited) => {
    const body = bodyOf(await orAborted(card, run.signal), limited);
    run.node.notice = "";
    await model.loadedBy(ask({ ...run, body }));
  };
  try {
    await askOne(model.loaded(), true);
  } catch (error) {
    if (isGone(error)) await askOne(model.renewed().then(() => model.loaded()), true);
    else if (error.param === "max_tokens") await askOne(model.loaded(), false);
    else throw error;
  }
}

function fail(node, error) {
  const lost = error instanceof TypeError; // what a browser throws when a stream breaks
  Object.assign(node, {
    state: "failed",
    error: lost ? "The connection to the server was lost." : sentence(error.message),
  });
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;

/** Ask, and ask again after the wait that a full or restarting server names. */
async function ask(run) {
  for (;;) {
    try {
      await read(run);
      return;
    } catch (error) {
      const waits = error instanceof ServerError && [429, 503].includes(error.status) && error.retryAfter;
      if (!waits || waits > LONGEST_WAIT) throw error;
      await countDown(run, error);
    }
  }
}

async function countDown({ node, signal, changed }, { message, retryAfter }) {
  for (let left = retryAfter; left > 0; left--) {
    node.notice = `${sentence(message)} Asking again in ${left} s.`;
    changed();
    await seconds(1)(signal);
  }
}

async function read({ server, node, body, signal, changed, resumes = false }) {
  const { id } = node.sent;
  const headers = resumes ? { "last-event-id": `${id}:` } : { "x-request-id": id, "x-noria-resume": "1" };
  let fold = null;
  let ended = false;
  const { path } = endpointOf(node.sent);
  for await (const { data, sent } of server.events(path, { method: "POST", body, signal, headers })) {
    const chunk = data === "[DONE]" ? null : JSON.parse(data);
    if (chunk === null) ended = true;
    else if (chunk.error) fail(node, chunk.error);
    else (fold ??= folder(node, resumes))(chunk, sent);
    changed();
    if (node.state === "failed") return;
  }
  if (!ended) throw new Error("The connection ended before the answer did.");
}

/** A function that folds the chunks of a stream into a node. One that `resumes` comes at once, without times. */
function folder(node, resumes) {
  const decoder = new TextDecoder();
  const earlier = resumes ? { first: node.stats?.first ?? 0 } : {};
  const { content = "", thought = "", calls, scores, stats: before = {} } = structuredClone(node.sent.continued) ?? {};
  Object.assign(node, { content, thought, calls, scores, finish: null, stats: { ...earlier, ...before } });
  const firstCall = calls?.length ?? 0;
  let first = null; // when the first text came, and how many tokens it had
  return (chunk, sent) => {
    if (chunk.prompt_progress) node.notice = progressOf(chunk.prompt_progress);
    const choice = chunk.choices?.[0];
    if (choice) foldChoice(choice, () => begin(chunk, sent));
    const timed = resumes ? null : first;
    if (chunk.usage) node.stats = joined(before, { first: node.stats.first, ...statsOf(chunk, timed) });
  };

  function foldChoice({ text, delta = { content: text }, logprobs, finish_reason: finish }, begin) {
    const thought = delta.reasoning_content ?? "";
    const scores = scoresOf(logprobs, decoder);
    if (delta.content || thought || delta.tool_calls || scores.length) begin();
    if (thought) node.thought = (node.thought ?? "") + thought;
    node.content += delta.content ?? "";
    for (const call of delta.tool_calls ?? []) foldCall(call);
    if (scores.length) (node.scores ??= []).push(...scores);
    if (finish) node.finish = finish;
  }

  function begin({ usage }, sent) {
    first ??= { at: performance.now(), tokens: usage?.completion_tokens ?? 0 };
    node.stats.first ??= first.at - sent;
    node.state = "writing";
    node.notice = "";
  }

  function foldCall({ index, id, function: part }) {
    const calls = (node.calls ??= []);
    const call = (calls[firstCall + index] ??= { id: "", name: "", arguments: "" });
    call.id ||= id ?? "";
    call.name += part?.name ?? "";
    call.arguments += part?.arguments ?? "";
  }
}

function progressOf({ total, processed }) {
  return total ? `Reading the prompt: ${Math.floor((100 * processed) / total)} %.` : "";
}

/** What a chunk says of cost and speed. The server tells its speed at the end; an answer may be stopped before. */
function statsOf({ usage, timings = {} }, first) {
  const seen = first ? (1000 * (usage.completion_tokens - first.tokens)) / (performance.now() - first.at) : null;
  return {
    prompt: usage.prompt_tokens,
    tokens: usage.completion_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    disk: timings.cache_disk_n ?? 0,
    speed: timings.predicted_per_second ?? (Number.isFinite(seen) ? seen : null),
    queue: timings.queue_ms ?? null,
    miss: timings.cache_miss ?? null,
  };
}

/** The cost of an answer in two parts. The second part's prompt has the first part: prompt and cache are the first's. */
function joined(before, after) {
  if (!before.tokens) return after;
  const tokens = before.tokens + after.tokens;
  const speed = tokens / (before.tokens / before.speed + after.tokens / after.speed);
  return { ...after, ...before, tokens, speed: Number.isFinite(speed) ? speed : null };
}

/** The probabilities in a chunk: of a chat completion (`content`) or of a raw one (`tokens`). */
function scoresOf(logprobs, decoder) {
  const { content = [], tokens = [], token_logprobs: own, top_logprobs: tops } = logprobs ?? {};
  const raw = (token, at) => {
    const top = Object.entries(tops?.[at] ?? {}).sort(([, one], [, other]) => other - one);
    return { token, shown: token, logprob: own[at], top };
  };
  return [...content.map((item) => scoreOf(item, decoder)), ...tokens.map(raw)];
}

/** A token's text is complete once its last byte has come. Control tokens have no bytes. */
function scoreOf({ token, bytes, logprob, top_logprobs: top }, decoder) {
  const shown = bytes?.length ? decoder.decode(new Uint8Array(bytes), { stream: true }) : token;
  return { token, shown, logprob, top: top.map((item) => [item.token, item.logprob]) };
}
