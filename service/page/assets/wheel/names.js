// Which request of which key a sequence of the engine belongs to, where this page may know it.

/** {sequence: "request of key"} of the model with this first name; null: of the server's only one. */
export async function readNames(server, model) {
  const { data } = await server.json("v1/requests");
  const own = data.filter(({ root }) => !model || root === model);
  const nameOf = ({ id, key }) => (key ? `${id} of ${key}` : id);
  return new Map(own.flatMap((item) => item.choices.map(({ sequence }) => [sequence, nameOf(item)])));
}

/** What the view calls a sequence. */
export const called = (names, id) => `#${id}${names.has(id) ? ` (${names.get(id)})` : ""}`;
