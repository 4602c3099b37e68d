// The openai package for Node transcribes, translates and asks about a recording.

import assert from "node:assert/strict";
import { createReadStream, readFileSync } from "node:fs";
import { test } from "node:test";
import OpenAI from "openai";
import { collected } from "./live.js";

const RECORDING = process.env.NORIA_RECORDING;
const model = "hearing";
const client = new OpenAI({ baseURL: `${process.env.NORIA_HEARING_URL}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (more = {}) => ({ model, file: createReadStream(RECORDING), temperature: 0, max_tokens: 12, ...more });

test("a transcript in every form", async () => {
  const whole = await client.audio.transcriptions.create(ask());
  assert(whole.text);
  assert.equal(whole.usage.input_token_details.audio_tokens, 375);
  assert.equal(await client.audio.transcriptions.create(ask({ response_format: "text" })), `${whole.text}\n`);
  const verbose = await client.audio.transcriptions.create(ask({ response_format: "verbose_json" }));
  assert.equal(verbose.text, whole.text);
  assert.equal(verbose.duration, 2);
  const events = await collected(await client.audio.transcriptions.create(ask({ stream: true })));
  const done = events.pop();
  assert(events.every(({ type }) => type === "transcript.text.delta"));
  assert.equal(events.map(({ delta }) => delta).join(""), whole.text);
  assert.equal(done.type, "transcript.text.done");
  assert.equal(done.text, whole.text);
});

test("a translation", async () => {
  assert((await client.audio.translations.create(ask())).text);
});

test("a chat about a recording", async () => {
  const data = readFileSync(RECORDING).toString("base64");
  const content = [
    { type: "input_audio", input_audio: { data, format: "wav" } },
    { type: "text", text: "What is said?" },
  ];
  const messages = [{ role: "user", content }];
  const answer = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
  assert(answer.choices[0].message.content);
  assert(answer.usage.prompt_tokens > 375);
});

test("an error names the field", async () => {
  const error = await client.audio.transcriptions.create(ask({ response_format: "srt" })).catch((caught) => caught);
  assert(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "response_format");
});
