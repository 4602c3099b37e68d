// What the tests of all Node clients share: the server, what they ask for, and how they see that a request was aborted.

import assert from "node:assert/strict";
import { rmSync, writeFileSync } from "node:fs";
import { z } from "zod";

export const SERVER = process.env.NORIA_URL;
export const MODEL = "smollm2-135m-instruct";
export const COUNT = "Count from one to ten in words.";
export const WEATHER = "What is the weather in Paris?";
export const STORY = "Write a very long story.";
export const City = z.object({ city: z.string().max(12), days: z.number().int().min(1).max(9) });

const PATIENCE = 60_000; // milliseconds

/** The sum of a metric's samples with these labels, and whatever model. */
async function metric(name, labels = "") {
  const lines = (await (await fetch(`${SERVER}/metrics`)).text()).split("\n");
  const found = lines.filter((line) => line.startsWith(`${name}{`) && line.includes(labels));
  assert(found.length, `no sample of ${name}`);
  return found.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf("}") + 1).trim().split(" ")[0]), 0);
}

async function eventually(condition, what) {
  const deadline = Date.now() + PATIENCE;
  while (!(await condition())) {
    assert(Date.now() < deadline, `never happened: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const running = () => metric("noria_requests_running");

/** Waits until the server computes a request. */
export const isRunning = () => eventually(running, "a request runs");

/** Runs `leave`, which starts a long answer and leaves it, and waits until the server has aborted the request. */
export async function isAborted(leave) {
  const aborted = () => metric("noria_requests_total", 'outcome="abort"');
  await eventually(async () => !(await running()), "the server is idle");
  const before = await aborted();
  const pace = process.env.PACE_OF_STEPS;
  writeFileSync(pace, ""); // while it is there the server is slow: no answer ends before its client has left
  try {
    await leave();
    await eventually(async () => (await aborted()) > before, "the server aborts the request");
  } finally {
    rmSync(pace);
  }
}

export async function collected(iterable) {
  const items = [];
  for await (const item of iterable) items.push(item);
  return items;
}
