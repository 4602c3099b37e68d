// The Anthropic package for Node: messages, its streaming helper, its tools, its errors.

import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { COUNT, City, MODEL, SERVER, STORY, WEATHER, collected, isAborted } from "./live.js";

const client = new Anthropic({ baseURL: SERVER, apiKey: "none", maxRetries: 0 });
const user = (content) => ({ role: "user", content });
const ASK = { model: MODEL, messages: [user(COUNT)], max_tokens: 12, temperature: 0 };
const LONG = { ...ASK, messages: [user(WEATHER)], max_tokens: 100 };
const SCHEMA = { type: "object", properties: { city: { type: "string", maxLength: 12 } }, required: ["city"] };
const TOOL = { name: "weather", description: "The weather in a city.", input_schema: SCHEMA };

test("a message, whole and streamed", async () => {
  const whole = await client.messages.create(ASK);
  assert.equal(whole.stop_reason, "max_tokens");
  assert.equal(whole.usage.output_tokens, 12);
  const streamed = await client.messages.stream(ASK).finalMessage();
  assert.deepEqual(streamed.content, whole.content);
  assert.equal(streamed.usage.output_tokens, 12);
  const events = await collected(await client.messages.create({ ...ASK, stream: true }));
  assert.equal(events.at(-1).type, "message_stop");
  const counted = await client.messages.countTokens({ model: MODEL, messages: ASK.messages });
  assert.equal(whole.usage.input_tokens + whole.usage.cache_read_input_tokens, counted.input_tokens);
  const messages = [user(COUNT), { role: "assistant", content: whole.content }, user("Go on.")];
  assert((await client.messages.create({ ...ASK, messages })).content[0].text);
});

test("an answer of a schema", async () => {
  const output_config = { format: zodOutputFormat(City) };
  City.parse((await client.messages.parse({ ...LONG, output_config })).parsed_output);
});

test("a tool is called and its result goes back", async () => {
  const tool_choice = { type: "any", disable_parallel_tool_use: true };
  const first = await client.messages.create({ ...LONG, tools: [TOOL], tool_choice });
  assert.equal(first.stop_reason, "tool_use");
  const [call] = first.content;
  const streamed = await client.messages.stream({ ...LONG, tools: [TOOL], tool_choice }).finalMessage();
  assert.deepEqual(streamed.content[0].input, call.input);
  const result = { type: "tool_result", tool_use_id: call.id, content: "Sunny." };
  const messages = [...LONG.messages, { role: "assistant", content: first.content }, user([result])];
  assert((await client.messages.create({ ...LONG, tools: [TOOL], messages })).content.length);
});

test("the tool runner runs a tool and asks again", async () => {
  const cities = [];
  const run = ({ city }) => {
    cities.push(city);
    return "Sunny.";
  };
  const tools = [betaZodTool({ name: "weather", description: "The weather.", inputSchema: City, run })];
  const tool_choice = { type: "any", disable_parallel_tool_use: true };
  const runner = client.beta.messages.toolRunner({ ...LONG, tools, tool_choice, max_iterations: 2 });
  assert.equal((await collected(runner)).length, 2);
  assert(cities.length);
});

test("models and errors", async () => {
  assert.deepEqual((await collected(client.models.list())).map((model) => model.id), [MODEL]);
  await assert.rejects(client.messages.create({ ...ASK, model: "claude" }), Anthropic.NotFoundError);
  const error = await client.messages.create({ ...ASK, temperature: 9 }).catch((caught) => caught);
  assert(error instanceof Anthropic.BadRequestError);
  assert.match(error.message, /temperature/);
});

test("a stream that its reader leaves is aborted", async () => {
  const request = { ...ASK, messages: [user(STORY)], max_tokens: 2000, stream: true };
  await isAborted(async () => {
    for await (const event of await client.messages.create(request)) if (event.type === "content_block_delta") break;
  });
});
