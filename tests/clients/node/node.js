// An inference node in JavaScript, written against docs/reference/node-protocol.md alone. Run `npm install --no-package-lock` beside it, then
//
//   node node.js --gateway ws://127.0.0.1:8485 --token-file desk.token --slots 2
//
// models.js has its capabilities; this file serves any. Each event is a line of JSON on standard output.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";

import WebSocket from "ws";

import { MODELS, offers } from "./models.js";

const { values: options } = parseArgs({
  options: {
    gateway: { type: "string", multiple: true },
    "token-file": { type: "string" },
    "node-id": { type: "string", default: `js-${randomUUID()}` },
    slots: { type: "string", default: "1" },
    // For tests: the node answers prompts that begin with "wait" once this file exists.
    "wait-for": { type: "string", default: "" },
  },
});
const gateways = options.gateway.flatMap((addresses) => addresses.split(","));
const token = readFileSync(options["token-file"], "utf8").trim();
const slots = Number(options.slots);

const END = new Set([4401, 4409, 4426]); // final: do not reconnect
const AT_ONCE = new Set([1001, 1012]); // the instance ends: reconnect to another at once
const OUR_FAULT = new Set([4400, 4413, 1009]);
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30_000;
const KEPT = 1000;

const log = (event, facts = {}) => console.log(JSON.stringify({ event, ...facts }));

// job_id -> { job, attempt, files, state: "waiting" | "working" | "done", stop, result }
const jobs = new Map();
const received = new Map(); // job_id -> attempt of the last acknowledged results
let connection = null; // the welcomed connection
let socket = null;
let draining = false;
let failures = 0;

// Sending. A message and its frames go out together, so that no other message interrupts them.

function say(type, fields = {}, files = []) {
  if (!connection) return; // resent after the next welcome, as far as needed
  connection.send(JSON.stringify({ v: 1, type, ...fields, ...(files.length && { attachments: files.map(facts) }) }));
  for (const file of files) connection.send(file.data, { binary: true });
}

const facts = ({ name, media_type, data }) => ({ name, media_type, size: data.length });
const named = (entry) => ({ job_id: entry.job.job_id, attempt: entry.attempt });

// Jobs

function assigned(job, files) {
  const known = jobs.get(job.job_id);
  if (job.attempt < known?.attempt || job.attempt <= received.get(job.job_id)) return;
  if (known && job.attempt === known.attempt) return repeat(known);
  known?.stop.abort();
  const entry = { job, attempt: job.attempt, files, state: "waiting", stop: new AbortController() };
  jobs.set(job.job_id, entry);
  log("assigned", { ...named(entry), capability: job.capability });
  say("job_ack", named(entry));
  next();
}

function repeat(entry) {
  if (entry.state === "done") return answer(entry);
  say("job_ack", named(entry));
  if (entry.state === "working") say("job_started", named(entry));
}

let atWork = 0;

function next() {
  for (const entry of jobs.values()) {
    if (atWork >= slots) return;
    if (entry.state === "waiting") work(entry);
  }
}

async function work(entry) {
  entry.state = "working";
  atWork += 1;
  say("job_started", named(entry));
  log("started", named(entry));
  const { capability, body } = entry.job;
  const current = () => jobs.get(entry.job.job_id) === entry;
  const partial = (text) => {
    if (!current() || entry.gap) return;
    if (connection) say("job_partial", { ...named(entry), text });
    else entry.gap = true;
  };
  const began = Date.now();
  try {
    const does = MODELS[capability];
    if (!does) throw failure("unknown_capability", `there is no ${capability} here`, "permanent");
    const context = { partial, signal: entry.stop.signal, waitFor: options["wait-for"] };
    const { files = [], ...result } = await does(body, entry.files, context);
    entry.result = { result: { ...result, latency_ms: Date.now() - began }, files };
  } catch (error) {
    const { code = "failed", kind = "transient" } = error;
    entry.result = { error: { code, kind, message: String(error.message).slice(0, 2000) }, files: [] };
  }
  atWork -= 1;
  if (current()) {
    entry.state = "done";
    answer(entry);
  }
  next();
}

const failure = (code, message, kind) => Object.assign(new Error(message), { code, kind });

function answer(entry) {
  if (!connection) return;
  let { files, ...result } = entry.result;
  const text = Buffer.byteLength(JSON.stringify(result)) + files.length * 1500 + 1000;
  const bytes = files.reduce((sum, file) => sum + file.data.length, 0);
  if (text > connection.limits.max_message_bytes || bytes > connection.limits.max_attachment_bytes) {
    files = [];
    result = { error: { code: "too_large", kind: "permanent", message: "the result is too large" } };
  }
  say("job_result", { ...named(entry), ...result }, files);
  log("answered", named(entry));
}

function forget({ job_id, attempt }) {
  const entry = jobs.get(job_id);
  if (entry?.attempt !== attempt) return;
  jobs.delete(job_id);
  if (draining) finishDraining();
}

function cancelled(message) {
  log("cancelled", { job_id: message.job_id, attempt: message.attempt });
  const entry = jobs.get(message.job_id);
  if (entry?.attempt !== message.attempt) return;
  entry.stop.abort();
  forget(message);
}

// Draining

function drain() {
  if (draining) return finishDraining();
  draining = true;
  log("draining", { jobs: jobs.size });
  say("node_drain");
  finishDraining();
}

function finishDraining() {
  if (jobs.size > 0) return;
  if (socket) socket.close(1000);
  if (!connection) process.exit(0);
}

// The connection

const handlers = {
  welcome(message) {
    failures = 0;
    connection = socket;
    connection.limits = message;
    connection.heartbeat = setInterval(beat, message.heartbeat_ms, socket, message.heartbeat_ms);
    log("welcome", { instance_id: message.instance_id });
    if (draining) say("node_drain");
    for (const entry of jobs.values()) repeat(entry);
    if (draining) finishDraining();
  },
  job_assign: assigned,
  job_cancel: cancelled,
  result_received(message) {
    log("received", { job_id: message.job_id, attempt: message.attempt, taken: message.taken });
    received.set(message.job_id, message.attempt);
    if (received.size > KEPT) received.delete(received.keys().next().value);
    forget(message);
  },
  drain,
  error: (message) => log("error", { code: message.code, message: message.message }),
};

function connect() {
  const address = gateways[failures % gateways.length].replace(/\/$/, "");
  const own = new WebSocket(`${address}/ws/node`, { headers: { Authorization: `Bearer ${token}` } });
  socket = own;
  let pending = null; // a message that waits for its binary frames

  own.heardAt = Date.now();
  for (const sign of ["message", "ping", "pong"]) own.on(sign, () => (own.heardAt = Date.now()));

  own.on("open", () => {
    const held = [...jobs.values()].map(named);
    log("connected", { held });
    own.send(JSON.stringify({
      v: 1, type: "node_register", versions: [1], node_id: options["node-id"], name: "JavaScript", slots,
      offers, software: "penstock-example-node 1.0.0", held,
    }));
  });

  own.on("message", (data, isBinary) => {
    if (isBinary) {
      if (!pending) return own.close(1002, "a binary frame that no message announced");
      pending.files.push({ ...pending.message.attachments[pending.files.length], data });
    } else {
      pending = { message: JSON.parse(data.toString()), files: [] };
    }
    const { message, files } = pending;
    if (files.length < (message.attachments?.length ?? 0)) return;
    pending = null;
    const handle = Object.hasOwn(handlers, message.type) ? handlers[message.type] : null;
    if (handle) handle(message, files);
    else log("passed_over", { type: message.type });
  });

  own.on("unexpected-response", (request, response) => {
    request.destroy();
    own.refused = response.statusCode;
    own.emit("close", response.statusCode === 401 || response.statusCode === 403 ? 4401 : 1006, "");
  });
  own.on("error", (error) => log("trouble", { message: error.message }));

  own.once("close", (code, reason) => {
    clearInterval(own.heartbeat);
    if (connection === own) connection = null;
    socket = null;
    log("closed", { code, reason: reason.toString() });
    if (END.has(code)) process.exit(1);
    if (draining && jobs.size === 0) process.exit(0);
    setTimeout(connect, wait(code));
  });
}

function beat(own, heartbeatMs) {
  if (Date.now() - own.heardAt > 3 * heartbeatMs) return own.terminate();
  say("node_heartbeat");
  own.ping();
}

function wait(code) {
  failures += 1;
  if (AT_ONCE.has(code) && failures === 1) return 0;
  const longest = OUR_FAULT.has(code) ? LONGEST_WAIT_MS : Math.min(FIRST_WAIT_MS * 2 ** (failures - 1), LONGEST_WAIT_MS);
  return longest * (1 - Math.random() / 2);
}

process.on("SIGTERM", drain);
process.on("SIGINT", drain);
connect();
