// Mistral's own package for Node: its users see the objects that it parses.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Mistral } from "@mistralai/mistralai";

const client = new Mistral({ apiKey: "none", serverURL: process.env.SERVER });
const ASK = [{ role: "user", content: "Count from one to ten in words." }];
const ASKED = { model: "smollm2-135m-instruct", messages: ASK, maxTokens: 12, temperature: 0 };
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris"] } },
  required: ["city"],
  additionalProperties: false,
};
const TOOLS = [{ type: "function", function: { name: "weather", description: "Weather.", parameters } }];
const said = (answer) => answer.choices[0].message.content;

test("an answer and a second turn", async () => {
  const first = await client.chat.complete(ASKED);
  assert.equal(first.usage.completionTokens, 12);
  const messages = [...ASK, first.choices[0].message, { role: "user", content: "Go on." }];
  assert(said(await client.chat.complete({ ...ASKED, messages })));
});

test("a stream says the same", async () => {
  let text = "";
  for await (const event of await client.chat.stream(ASKED)) text += event.data.choices[0]?.delta.content ?? "";
  assert.equal(text, said(await client.chat.complete(ASKED)));
});

test("an answer that was begun goes on", async () => {
  const whole = said(await client.chat.complete(ASKED));
  const begun = whole.slice(0, whole.length / 2).trimEnd();
  const messages = [...ASK, { role: "assistant", content: begun, prefix: true }];
  const rest = said(await client.chat.complete({ ...ASKED, messages }));
  const goesOn = rest.startsWith(begun) ? rest : begun + rest;
  assert(goesOn.startsWith(whole.slice(0, begun.length + 3)), goesOn);
});

test("a seed repeats an answer", async () => {
  const ask = (randomSeed) => client.chat.complete({ ...ASKED, temperature: 1.5, randomSeed }).then(said);
  assert.equal(await ask(7), await ask(7));
  assert.notEqual(await ask(7), await ask(8));
});

test("a tool is called and answers", async () => {
  const asked = { ...ASKED, maxTokens: 60, tools: TOOLS, toolChoice: "any", parallelToolCalls: false };
  const { message } = (await client.chat.complete(asked)).choices[0];
  const [call] = message.toolCalls;
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  const result = { role: "tool", name: "weather", toolCallId: call.id, content: "It is sunny." };
  const messages = [...ASK, message, result];
  assert(said(await client.chat.complete({ ...ASKED, messages, tools: TOOLS, toolChoice: "none" })));
});

test("a tool is called in a stream", async () => {
  const asked = { ...ASKED, maxTokens: 60, tools: TOOLS, toolChoice: "any", parallelToolCalls: false };
  let name = "";
  let given = "";
  for await (const { data } of await client.chat.stream(asked)) {
    for (const call of data.choices[0].delta.toolCalls ?? []) {
      name += call.function.name;
      given += call.function.arguments;
    }
  }
  assert.deepEqual([name, JSON.parse(given)], ["weather", { city: "Paris" }]);
});

test("the middle of a code is filled", async () => {
  const asked = { model: ASKED.model, prompt: "def one():\n", maxTokens: 8, temperature: 0 };
  assert(said(await client.fim.complete(asked)));
  await assert.rejects(client.fim.complete({ ...asked, suffix: "\n" }), /suffix needs a model/);
});

test("the models are listed", async () => {
  const { data } = await client.models.list();
  assert(data.some((model) => model.id === ASKED.model), JSON.stringify(data));
});
