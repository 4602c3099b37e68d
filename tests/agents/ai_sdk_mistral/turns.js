// Vercel's AI SDK with its provider for Mistral.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createMistral } from "@ai-sdk/mistral";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const mistral = createMistral({ apiKey: "none", baseURL: `${process.env.SERVER}/v1` });
const model = mistral("smollm2-135m-instruct");
const prompt = "Count from one to ten in words.";
const ASKED = { model, maxOutputTokens: 12, temperature: 0, maxRetries: 0 };

test("an answer, a stream of it and a second turn", async () => {
  const first = await generateText({ ...ASKED, prompt });
  assert.equal(first.usage.outputTokens, 12);
  const stream = streamText({ ...ASKED, prompt });
  assert.equal(await stream.text, first.text);
  const user = (content) => ({ role: "user", content });
  const messages = [user(prompt), ...first.response.messages, user("Go on.")];
  assert((await generateText({ ...ASKED, messages })).text);
});

test("an answer that was begun goes on", async () => {
  const { text } = await generateText({ ...ASKED, prompt });
  const begun = text.slice(0, text.length / 2).trimEnd();
  const messages = [{ role: "user", content: prompt }, { role: "assistant", content: begun }];
  const rest = (await generateText({ ...ASKED, messages })).text;
  const goesOn = rest.startsWith(begun) ? rest : begun + rest;
  assert(goesOn.startsWith(text.slice(0, begun.length + 3)), goesOn);
});

test("a seed repeats an answer", async () => {
  const ask = async (seed) => (await generateText({ ...ASKED, temperature: 1.5, seed, prompt })).text;
  assert.equal(await ask(7), await ask(7));
  assert.notEqual(await ask(7), await ask(8));
});

test("a tool is called, runs, and the model answers", async () => {
  const cities = [];
  const weather = tool({
    description: "Tells the weather of a city.",
    inputSchema: z.object({ city: z.enum(["Paris"]) }),
    execute: async ({ city }) => `It is sunny in ${cities.push(city) && city}.`,
  });
  const asked = { ...ASKED, maxOutputTokens: 60, prompt: "What is the weather in Paris?", tools: { weather } };
  const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" });
  const answer = await generateText({ ...asked, prepareStep, stopWhen: stepCountIs(2) });
  assert.deepEqual(cities, Array(cities.length).fill("Paris"));
  assert(cities.length && answer.steps.length === 2);
});

test("a tool is called in a stream", async () => {
  const weather = tool({ description: "Weather.", inputSchema: z.object({ city: z.enum(["Paris"]) }) });
  const asked = { ...ASKED, maxOutputTokens: 60, prompt: "What is the weather in Paris?", tools: { weather } };
  const [call] = await streamText({ ...asked, toolChoice: "required" }).toolCalls;
  assert.deepEqual([call.toolName, call.input], ["weather", { city: "Paris" }]);
});

test("an object of a schema", async () => {
  const output = Output.object({ schema: z.object({ word: z.enum(["one", "two"]) }) });
  const answer = await generateText({ ...ASKED, maxOutputTokens: 40, prompt, output });
  assert(["one", "two"].includes(answer.output.word));
});
