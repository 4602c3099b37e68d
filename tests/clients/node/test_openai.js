// The openai package for Node: chat, completions, responses, embeddings, and the helpers that its users call.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { COUNT, City, MODEL, SERVER, STORY, WEATHER, collected, isAborted, isRunning } from "./live.js";

const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: "none", maxRetries: 0 });
const user = (content) => ({ role: "user", content });
const ASK = { model: MODEL, messages: [user(COUNT)], max_completion_tokens: 12, temperature: 0 };
const LONG = { ...ASK, messages: [user(WEATHER)], max_completion_tokens: 100 };
const INPUT = { model: MODEL, input: COUNT, max_output_tokens: 16, temperature: 0 };

test("chat, whole and streamed", async () => {
  const whole = await client.chat.completions.create(ASK);
  assert.equal(whole.choices[0].finish_reason, "length");
  const request = { ...ASK, stream: true, stream_options: { include_usage: true } };
  const chunks = await collected(await client.chat.completions.create(request));
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(whole.usage.completion_tokens, 12);
  assert.equal(chunks.at(-1).usage.completion_tokens, 12);
  assert.equal(chunks.at(-1).usage.prompt_tokens, whole.usage.prompt_tokens);
  const final = await client.chat.completions.stream(ASK).finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
  const messages = [user(COUNT), whole.choices[0].message, user("Go on.")];
  assert((await client.chat.completions.create({ ...ASK, messages })).choices[0].message.content);
});

test("an answer of a schema, whole and streamed", async () => {
  const request = { ...LONG, response_format: zodResponseFormat(City, "weather") };
  const whole = await client.chat.completions.parse(request);
  City.parse(whole.choices[0].message.parsed);
  const streamed = await client.chat.completions.stream(request).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, whole.choices[0].message.parsed);
});

test("a tool is called and its result goes back", async () => {
  const tools = [zodFunction({ name: "weather", description: "The weather in a city.", parameters: City })];
  const request = { ...LONG, tools, tool_choice: "required", parallel_tool_calls: false };
  const { message } = (await client.chat.completions.parse(request)).choices[0];
  const [call] = message.tool_calls;
  City.parse(call.function.parsed_arguments);
  const streamed = (await client.chat.completions.stream(request).finalChatCompletion()).choices[0];
  assert.equal(streamed.finish_reason, "tool_calls");
  assert.equal(streamed.message.tool_calls[0].function.arguments, call.function.arguments);
  const result = { role: "tool", tool_call_id: call.id, content: "Sunny." };
  const messages = [...LONG.messages, message, result];
  const final = (await client.chat.completions.create({ ...LONG, tools, messages })).choices[0].message;
  assert(final.content || final.tool_calls);
});

test("the helper runs a tool and asks again", async () => {
  const cities = [];
  const weather = ({ city }) => {
    cities.push(city);
    return "Sunny.";
  };
  const tools = [zodFunction({ name: "weather", function: weather, parameters: City })];
  const tool_choice = { type: "function", function: { name: "weather" } };
  await client.chat.completions.runTools({ ...LONG, tools, tool_choice }, { maxChatCompletions: 2 }).done();
  assert.equal(cities.length, 1);
});

test("responses, whole, streamed and continued", async () => {
  const whole = await client.responses.create(INPUT);
  assert.equal(whole.incomplete_details.reason, "max_output_tokens");
  assert.equal(whole.usage.output_tokens, 16);
  const events = await collected(await client.responses.create({ ...INPUT, stream: true }));
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), whole.output_text);
  assert.equal((await client.responses.stream(INPUT).finalResponse()).output_text, whole.output_text);
  const input = [user(COUNT), ...whole.output, user("Go on.")];
  assert((await client.responses.create({ ...INPUT, input })).output_text);
});

test("responses with state, and in the background", async () => {
  const whole = await client.responses.create(INPUT);
  const input = [user(COUNT), ...whole.output, user("Go on.")];
  const next = await client.responses.create({ ...INPUT, input: "Go on.", previous_response_id: whole.id });
  assert.equal(next.output_text, (await client.responses.create({ ...INPUT, input })).output_text);
  const begun = [];
  for await (const event of await client.responses.create({ ...INPUT, background: true, stream: true })) {
    begun.push(event);
    if (begun.length === 3) break;
  }
  const { id } = begun[0].response;
  const rest = await client.responses.retrieve(id, { stream: true, starting_after: 2 });
  const events = [...begun, ...(await collected(rest))];
  assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), whole.output_text);
  assert.equal((await client.responses.retrieve(id)).output_text, whole.output_text);
  await client.responses.delete(id);
  await assert.rejects(client.responses.retrieve(id), OpenAI.NotFoundError);
});

test("responses of a schema, and a tool's result", async () => {
  const request = { ...INPUT, input: WEATHER, max_output_tokens: 100 };
  const parsed = await client.responses.parse({ ...request, text: { format: zodTextFormat(City, "weather") } });
  City.parse(parsed.output_parsed);
  const tools = [zodResponsesFunction({ name: "weather", parameters: City })];
  const first = await client.responses.parse({ ...request, tools, tool_choice: "required", parallel_tool_calls: false });
  const [call] = first.output;
  City.parse(call.parsed_arguments);
  const input = [user(WEATHER), ...first.output, { type: "function_call_output", call_id: call.call_id, output: "Dry." }];
  assert((await client.responses.create({ ...request, tools, input })).output.length);
});

test("completions and embeddings", async () => {
  const request = { model: MODEL, prompt: "One, two, three,", max_tokens: 4, temperature: 0, logprobs: 2 };
  const choice = (await client.completions.create(request)).choices[0];
  assert.equal(choice.logprobs.tokens.join(""), choice.text);
  const ask = { model: MODEL, input: ["One.", "Another text."] };
  const plain = (await client.embeddings.create({ ...ask, encoding_format: "float" })).data;
  const coded = (await client.embeddings.create(ask)).data; // the package asks for base64 by default
  for (const [n, { embedding }] of plain.entries())
    for (const [i, number] of embedding.entries()) assert(Math.abs(number - coded[n].embedding[i]) < 1e-6);
});

test("models and errors", async () => {
  assert.deepEqual((await collected(client.models.list())).map((model) => model.id), [MODEL]);
  await assert.rejects(client.chat.completions.create({ ...ASK, model: "gpt" }), OpenAI.NotFoundError);
  const error = await client.chat.completions.create({ ...ASK, temperature: 9 }).catch((caught) => caught);
  assert(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
  assert.equal(error.type, "invalid_request_error");
});

test("a stream that its reader leaves is aborted", async () => {
  const request = { ...ASK, messages: [user(STORY)], max_completion_tokens: 2000, stream: true };
  await isAborted(async () => {
    for await (const chunk of await client.chat.completions.create(request)) if (chunk.choices[0].delta.content) break;
  });
  await isAborted(async () => {
    const controller = new AbortController();
    const whole = client.chat.completions.create({ ...request, stream: false }, { signal: controller.signal });
    const failed = assert.rejects(whole, OpenAI.APIUserAbortError);
    await isRunning();
    controller.abort();
    await failed;
  });
});
