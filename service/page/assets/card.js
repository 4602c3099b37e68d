// What the card of a model (`/v1/models/{id}`) says.

/** Whether the model can do something, such as "vision": true, false, or null where its card does not say. */
export function can(card, what) {
  const { capabilities } = card;
  if (Array.isArray(capabilities)) return capabilities.includes(what);
  return capabilities?.[what] ?? null;
}

const STATES = { unloaded: "not loaded", draining: "unloading" };

/** The state of a model in words; of one that has failed, with the reason. */
export function stateOf({ state, reason }) {
  return state === "failed" && reason ? `failed: ${reason}` : (STATES[state] ?? state);
}
