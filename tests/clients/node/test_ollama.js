// The ollama package for Node: models, chats, generations, embeddings, its errors.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Ollama } from "ollama";
import { z } from "zod";
import { COUNT, City, MODEL, SERVER, STORY, collected, isAborted } from "./live.js";

const client = new Ollama({ host: SERVER });
const user = (content) => ({ role: "user", content });
const options = { num_predict: 12, temperature: 0 };
const CHAT = { model: MODEL, messages: [user(COUNT)], options };
const TOOL = { type: "function", function: { name: "weather", description: "The weather.", parameters: { type: "object" } } };

test("models", async () => {
  const { models } = await client.list();
  assert.deepEqual(models.map((model) => model.name), [MODEL]);
  assert.equal((await client.ps()).models[0].name, MODEL);
  const shown = await client.show({ model: MODEL });
  assert(shown.capabilities.includes("tools"));
  assert.equal(shown.model_info["llama.context_length"], 8192);
  assert((await client.version()).version);
});

test("a chat, whole and streamed", async () => {
  const whole = await client.chat(CHAT);
  assert.equal(whole.done_reason, "length");
  assert.equal(whole.eval_count, 12);
  const parts = await collected(await client.chat({ ...CHAT, stream: true }));
  assert.equal(parts.map((part) => part.message.content).join(""), whole.message.content);
  assert.equal(parts.at(-1).done, true);
  const messages = [user(COUNT), whole.message, user("Go on.")];
  assert((await client.chat({ ...CHAT, messages, think: false, keep_alive: "5m" })).message.content);
});

test("an answer of a schema", async () => {
  const format = z.toJSONSchema(City);
  const reply = await client.chat({ ...CHAT, format, options: { num_predict: 60, temperature: 0 } });
  City.parse(JSON.parse(reply.message.content));
});

test("tools and their results", async () => {
  const call = { function: { name: "weather", arguments: { city: "Paris" } } };
  const messages = [...CHAT.messages, { role: "assistant", content: "", tool_calls: [call] }, { role: "tool", content: "Sunny." }];
  assert((await client.chat({ ...CHAT, messages, tools: [TOOL] })).message.content);
});

test("generations and embeddings", async () => {
  const reply = await client.generate({ model: MODEL, prompt: COUNT, options });
  assert.equal(reply.eval_count, 12);
  const parts = await collected(await client.generate({ model: MODEL, prompt: COUNT, options, stream: true }));
  assert.equal(parts.map((part) => part.response).join(""), reply.response);
  assert.equal((await client.generate({ model: MODEL, prompt: "", keep_alive: -1 })).done_reason, "load");
  const { embeddings } = await client.embed({ model: MODEL, input: ["A noria.", "A wheel."] });
  assert.deepEqual(embeddings.map((each) => each.length), [576, 576]);
});

test("errors", async () => {
  await assert.rejects(client.chat({ ...CHAT, model: "nobody" }), /does not exist here/);
  await assert.rejects(client.pull({ model: "mistral" }), /noria pull/);
  const images = ["R0lGODlh"];
  await assert.rejects(client.chat({ ...CHAT, messages: [{ ...user("What is it?"), images }] }), /takes no images/);
});

test("leaving a stream aborts the request", () =>
  isAborted(async () => {
    const stream = await client.chat({ model: MODEL, messages: [user(STORY)], stream: true });
    for await (const _ of stream) break;
    stream.abort();
  }));
