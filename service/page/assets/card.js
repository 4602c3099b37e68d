// What the card of a model (`/v1/models/{id}`) says.

/** Whether the model can do something, such as "vision": true, false, or null where its card does not say. */
export function can(card, what) {
  const { capabilities } = card;
  if (Array.isArray(capabilities)) return capabilities.includes(what);
  return capabilities?.[what] ?? null;
}
