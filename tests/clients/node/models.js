// The node's functions by capability: `(body, files, context) => result`. They use no model and only echo.

import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const MODEL = "echo";

export const offers = [
  { capability: "text", models: [MODEL] },
  { capability: "vision", models: [MODEL] },
  { capability: "page", models: [MODEL] },
];

export const MODELS = { text, vision, page };

// Returns the prompt backwards, word by word.
async function text(body, files, { partial, signal, waitFor }) {
  const answer = [...body.prompt].reverse().join("");
  for (const piece of answer.match(/\S+\s*|\s+/g) ?? []) partial(piece);
  while (waitFor && body.prompt.startsWith("wait") && !existsSync(waitFor)) await sleep(10, undefined, { signal });
  return { text: answer, model: MODEL, truncated: false, usage: usage(body.prompt, answer) };
}

// Returns the size of each picture.
async function vision(body, files) {
  const answer = files.map(({ media_type, data }) => `${media_type} ${data.length}`).join("\n");
  return { text: answer, model: MODEL, truncated: false, usage: usage(body.prompt, answer) };
}

// Returns a page that consists of one picture.
async function page(body, [{ media_type, data }]) {
  const name = `page-${body.number}`;
  const answer = `![](${name})`;
  const files = body.pictures ? [{ name, media_type, data }] : [];
  return { text: answer, model: MODEL, truncated: false, usage: usage("", answer), files };
}

const usage = (prompt, answer) => ({ input_tokens: prompt.length, output_tokens: answer.length });
