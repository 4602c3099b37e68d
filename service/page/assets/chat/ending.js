// How an answer ended and what it cost, in words.

/** The server's finish reasons: what to say of each, or null for a complete answer. */
export const FINISHES = {
  stop: null,
  tool_calls: null,
  length: "The answer was cut off at its length limit (max_tokens in Settings).",
  repetition: "The answer was cut off because it repeated itself.",
  timeout: "The answer was cut off at its time limit.",
  abort: "The answer was cut off: its request was cancelled at the server.",
};

/** What to say of an answer's end, and what to offer; null for an answer that is complete. */
export function endingOf(node, running, isLast) {
  const written = Boolean(node.content || node.thought);
  const goOn = isLast && written && !node.calls?.length ? ["Continue"] : [];
  if (node.state === "failed") return { kind: "error", text: node.error || "It failed.", offers: ["Retry", ...goOn] };
  if (node.state === "stopped") return { kind: "", text: "Stopped.", offers: goOn.length ? goOn : ["Retry"] };
  if (node.state === "done") {
    const text = FINISHES[node.finish] ?? (!written && !node.calls?.length ? "The answer is empty." : null);
    return text && { kind: "", text, offers: goOn };
  }
  if (running) return null;
  return {
    kind: "",
    text: "Incomplete. The page was closed, or another tab is writing this answer.",
    offers: goOn.length ? goOn : ["Retry"],
  };
}

/** The end of an answer, for a screen reader. */
export function announced(node) {
  const ending = endingOf(node, false, true);
  if (!ending) return "The answer is complete.";
  if (node.state === "stopped") return "The answer was stopped.";
  return node.state === "failed" ? `The answer failed. ${ending.text}` : ending.text;
}

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** Where the prompt left the cached prefix, and why, in the server's word. */
const missOf = (miss) => (miss ? ` The prompt left the cache at token ${miss.at}: ${miss.reason}.` : "");

/** Speed, time to the first token and cached tokens, or null before an answer has its numbers. */
export function costOf({ stats }) {
  if (!stats?.tokens) return null;
  const parts = [plural(stats.tokens, "token")];
  if (stats.speed) parts.push(`${stats.speed.toFixed(1)} tokens/s`);
  if (stats.first) parts.push(`first after ${duration(stats.first)}`);
  const disk = stats.disk ? `, ${stats.disk} of them on disk` : "";
  parts.push(`${stats.cached ?? 0} of ${stats.prompt} prompt tokens cached${disk}`);
  const queue = stats.queue == null ? "" : ` In the queue: ${duration(stats.queue)}.`;
  return {
    text: parts.join(" · "),
    more: `The time to the first token includes the network.${queue}${missOf(stats.miss)}`,
  };
}
