// Vercel's AI SDK through its providers for OpenAI-compatible servers, OpenAI (chat and responses) and Anthropic.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateObject, generateText, hasToolCall, isStepCount, streamObject } from "ai";
import { streamText, tool } from "ai";
import { COUNT, City, MODEL, SERVER, STORY, WEATHER, collected, isAborted } from "./live.js";

const OPTIONS = { baseURL: `${SERVER}/v1`, apiKey: "none" };
const compatible = createOpenAICompatible({ ...OPTIONS, name: "noria", includeUsage: true, supportsStructuredOutputs: true });
const openai = createOpenAI(OPTIONS);
const anthropic = createAnthropic(OPTIONS);
const PROVIDERS = {
  "openai-compatible": (id) => compatible(id),
  "openai, chat": (id) => openai.chat(id),
  "openai, responses": (id) => openai.responses(id),
  anthropic: (id) => anthropic(id),
};
const user = (content) => ({ role: "user", content });
const providerOptions = { openai: { store: false } }; // the provider sends whole items
const COMMON = { maxRetries: 0, temperature: 0, maxOutputTokens: 100, providerOptions };

for (const [name, provider] of Object.entries(PROVIDERS)) {
  const ask = { ...COMMON, model: provider(MODEL) };

  test(`${name}: a text, whole, streamed and continued`, async () => {
    const request = { ...ask, maxOutputTokens: 16, instructions: "You are terse.", prompt: COUNT };
    const whole = await generateText(request);
    assert.equal(whole.finishReason, "length");
    assert.equal(whole.usage.outputTokens, 16);
    const stream = streamText(request);
    assert.equal((await collected(stream.textStream)).join(""), whole.text);
    assert.equal((await stream.usage).outputTokens, 16);
    const messages = [user(COUNT), ...whole.response.messages, user("Go on.")];
    assert((await generateText({ ...ask, messages })).text);
  });

  test(`${name}: an object, whole and streamed`, async () => {
    const request = { ...ask, prompt: WEATHER };
    const { object } = await generateObject({ ...request, schema: City });
    City.parse(object);
    const streamed = streamObject({ ...request, schema: City });
    assert.deepEqual((await collected(streamed.partialObjectStream)).at(-1), object);
    City.parse((await generateText({ ...request, output: Output.object({ schema: City }) })).output);
  });

  test(`${name}: a tool runs and its result goes back`, async () => {
    const cities = [];
    const execute = ({ city }) => {
      cities.push(city);
      return { sky: "sunny" };
    };
    const tools = { weather: tool({ description: "The weather in a city.", inputSchema: City, execute }) };
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? "auto" : "required" });
    const request = { ...ask, tools, prepareStep, prompt: WEATHER };
    const whole = await generateText({ ...request, stopWhen: isStepCount(2) });
    assert.equal(whole.steps.length, 2);
    assert.equal(whole.steps[0].finishReason, "tool-calls");
    const [call] = whole.steps[0].toolCalls;
    const stream = streamText({ ...request, stopWhen: hasToolCall("weather") });
    const parts = await collected(stream.fullStream);
    assert.deepEqual(parts.find((part) => part.type === "tool-call").input, call.input);
    assert.equal(cities[0], call.input.city);
  });

  test(`${name}: errors`, async () => {
    const failure = (changes) => generateText({ ...ask, prompt: COUNT, ...changes }).catch((caught) => caught);
    const missing = await failure({ model: provider("gpt") });
    assert(APICallError.isInstance(missing));
    assert.equal(missing.statusCode, 404);
    const bad = await failure({ topP: 9 });
    assert.equal(bad.statusCode, 400);
    assert.match(bad.message, /top_p/);
  });

  test(`${name}: a stream that its reader leaves is aborted`, async () => {
    const controller = new AbortController();
    await isAborted(async () => {
      const abortSignal = controller.signal;
      const stream = streamText({ ...ask, maxOutputTokens: 2000, prompt: STORY, abortSignal });
      for await (const part of stream.fullStream) if (part.type === "text-delta") controller.abort();
    });
  });
}

test("references to stored items, which are the provider's default", async () => {
  const request = { ...COMMON, maxOutputTokens: 16, model: openai.responses(MODEL), providerOptions: {} };
  const { response, text } = await generateText({ ...request, prompt: COUNT });
  const messages = [user(COUNT), ...response.messages, user("Go on.")];
  const referred = await generateText({ ...request, messages, include: { requestBody: true } });
  assert(referred.request.body.input.some((item) => item.type === "item_reference"));
  const plain = [user(COUNT), { role: "assistant", content: text }, user("Go on.")];
  const { text: answer } = await generateText({ ...request, messages: plain, providerOptions });
  assert.equal(referred.text, answer);
});

test("embeddings", async () => {
  const values = ["One.", "Another text."];
  for (const model of [compatible.embeddingModel(MODEL), openai.embedding(MODEL)]) {
    const { embeddings, usage } = await embedMany({ model, values, maxRetries: 0 });
    assert.equal(embeddings.length, 2);
    assert(usage.tokens > 2);
  }
});

test("the completions of the OpenAI-compatible provider", async () => {
  const request = { ...COMMON, model: compatible.completionModel(MODEL), prompt: "One, two, three,", maxOutputTokens: 4 };
  const whole = await generateText(request);
  assert.equal((await collected(streamText(request).textStream)).join(""), whole.text);
});
