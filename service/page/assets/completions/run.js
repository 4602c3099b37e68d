// One completion: the request, and its stream as pieces of text with their probabilities.

const ALTERNATIVES = 5;

/** The body for a prompt. `scores` asks for probabilities, `echo` for those of the prompt too. */
export function bodyOf(model, prompt, values, { scores, echo }) {
  return {
    model,
    prompt,
    ...values,
    ...(scores ? { logprobs: ALTERNATIVES } : {}),
    ...(echo ? { echo: true } : {}),
    stream: true,
    stream_options: { include_usage: true },
  };
}

/**
 * The answer as it comes: {text, scores, finish, usage, timings, waited}, of which an event has some. `text` is what
 * follows the prompt, also with echo.
 */
export async function* run(server, body, signal) {
  let echoed = body.echo ? body.prompt : ""; // of the prompt, what has not come back yet
  for await (const { data, sent } of server.events("v1/completions", { method: "POST", body, signal })) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    if (event.usage) yield { usage: event.usage, timings: event.timings };
    const [choice] = event.choices;
    if (!choice) continue;
    const waited = performance.now() - sent;
    const back = commonStart(echoed, choice.text);
    echoed = echoed.slice(back);
    yield { text: choice.text.slice(back), scores: scoresOf(choice.logprobs), finish: choice.finish_reason, waited };
  }
}

function commonStart(first, second) {
  let length = 0;
  while (length < first.length && first[length] === second[length]) length++;
  return length;
}

/** Scores as tokens.js shows them. */
function scoresOf(logprobs) {
  if (!logprobs) return [];
  return logprobs.tokens.map((token, i) => ({
    token,
    shown: token,
    logprob: logprobs.token_logprobs[i],
    top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).sort(([, a], [, b]) => b - a),
  }));
}

/** What an answer took, in words. */
export function summary({ usage, timings, finish, waited }) {
  const parts = [];
  if (usage) {
    parts.push(`${usage.completion_tokens} tokens after a prompt of ${usage.prompt_tokens}`);
    const cached = usage.prompt_tokens_details?.cached_tokens;
    if (cached) parts.push(`${cached} of them cached`);
  }
  if (timings?.predicted_per_second) parts.push(`${timings.predicted_per_second.toFixed(1)} tokens/s`);
  if (waited !== undefined) parts.push(`first token after ${Math.round(waited)} ms`);
  const end = {
    length: "The limit max_tokens ended it: Continue goes on.",
    stop: "The model or a stop string ended it.",
  }[finish];
  return `${parts.join(", ")}. ${end ?? ""}`;
}
