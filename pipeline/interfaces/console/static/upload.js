// Upload each file in a request of its own, a few at a time, and show the progress and outcome of each.

// The form `#drop` holds the address and the accepted types: `data-to`, `data-archives`, `data-shows`, `data-suffixes`, `data-times`.

const AT_ONCE = 3;
const TRIES = 5;
const SHOWN = 300;
const id = (name) => document.getElementById(name);
const waiting = [];
const active = new Set();
let all = [];
let passed = [];
let refreshing = 0;

const drop = () => id("drop");

function size(bytes) {
  return bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.max(1, Math.round(bytes / 1e3))} kB`;
}

function files(count) {
  return `${count.toLocaleString("en")} ${count === 1 ? "file" : "files"}`;
}

// One line of the list. Names are text, never markup.
function line(item) {
  const row = document.createElement("li");
  const name = document.createElement("span");
  name.textContent = item.path;
  const bar = document.createElement("progress");
  bar.className = "bar";
  bar.max = 1;
  bar.value = 0;
  bar.setAttribute("aria-label", `Upload of ${item.path}`);
  const status = document.createElement("span");
  status.className = "said";
  status.textContent = "waits";
  const stop = document.createElement("button");
  stop.type = "button";
  stop.className = "quiet";
  stop.textContent = "×";
  stop.setAttribute("aria-label", `Cancel ${item.path}`);
  stop.addEventListener("click", () => cancel(item));
  row.append(name, bar, status, stop);
  Object.assign(item, { row, name, bar, status, stop });
  return row;
}

function say(item, words, css = "") {
  item.status.textContent = words;
  item.row.className = css;
  item.bar.className = `bar ${css === "sent" ? "done" : css}`;
}

function end(item, state, words) {
  item.state = state;
  active.delete(item);
  item.request = null;
  say(item, words, state);
  item.stop.hidden = true;
  if (state === "sent") item.bar.value = 1;
  next();
}

function cancel(item) {
  if (item.state !== "waiting" && item.state !== "sending") return;
  clearTimeout(item.retry);
  const at = waiting.indexOf(item);
  if (at >= 0) waiting.splice(at, 1);
  item.request?.abort();
  end(item, "cancelled", "cancelled");
}

function tell() {
  const ended = all.filter((item) => !["waiting", "sending"].includes(item.state));
  const sent = ended.filter((item) => item.state === "sent").length;
  const failed = ended.filter((item) => item.state === "failed").length;
  const unfinished = all.length - ended.length;
  const bytes = all.reduce((sum, item) => sum + item.file.size, 0);
  const done = all.reduce((sum, item) => sum + item.file.size * (item.state === "sent" ? 1 : item.share), 0);
  const over = all.filter((item) => ["failed", "cancelled"].includes(item.state)).reduce((sum, item) => sum + item.file.size * (1 - item.share), 0);
  id("uploads-bar").value = unfinished ? (bytes ? (done + over) / bytes : 0) : 1;
  const trouble = failed ? `, ${failed.toLocaleString("en")} not accepted` : "";
  id("uploads-words").textContent = unfinished
    ? `${sent.toLocaleString("en")} of ${files(all.length)} sent, ${size(done)} of ${size(bytes)}${trouble}`
    : `${sent ? files(sent) : "Nothing"} sent${trouble}`;
  id("uploads-cancel").hidden = !unfinished;
  id("uploads-close").hidden = unfinished > 0;
}

// Refresh the page's list after uploads, but not after each of a hundred files.
function refresh() {
  clearTimeout(refreshing);
  refreshing = setTimeout(() => document.body.dispatchEvent(new CustomEvent("changed")), active.size || waiting.length ? 1500 : 150);
}

function options() {
  const fields = new FormData(drop());
  fields.delete("file");
  for (const [name, value] of [...fields]) if (!value) fields.delete(name);
  return fields;
}

function problem(request, name) {
  try {
    const words = JSON.parse(request.responseText).detail;
    if (words) return words.startsWith(name) ? words : words[0].toUpperCase() + words.slice(1);
  } catch { /* the answer is not Penstock's */ }
  return request.status ? `The server answered with ${request.status}.` : "The server does not answer.";
}

function send(item) {
  const most = Number(drop().dataset.mostMb);
  item.state = "sending";
  active.add(item);
  if (item.file.size > most * 1e6) return end(item, "failed", `The file has ${size(item.file.size)}; the limit is ${most} MB.`);
  if (!item.file.size) return end(item, "failed", "The file is empty.");
  const body = new FormData();
  for (const [name, value] of item.options) body.append(name, value);
  if (drop().dataset.times !== undefined) body.append("ts", new Date(item.file.lastModified).toISOString());
  body.append("file", item.file, item.file.name);
  const request = new XMLHttpRequest();
  item.request = request;
  item.tries += 1;
  request.upload.addEventListener("progress", (event) => {
    item.share = event.lengthComputable && event.total ? event.loaded / event.total : 0;
    item.bar.value = item.share;
    say(item, item.share < 1 ? `${Math.round(item.share * 100)} %` : "is being checked");
    tell();
  });
  request.addEventListener("load", () => {
    if (request.status < 300) return accepted(item, JSON.parse(request.responseText));
    const wait = Number(request.getResponseHeader("Retry-After")) || 2;
    if ([429, 503].includes(request.status) && item.tries < TRIES && wait <= 60) return later(item, wait, problem(request, item.file.name));
    end(item, "failed", problem(request, item.file.name));
  });
  request.addEventListener("error", () => {
    if (item.tries < TRIES) return later(item, 2 * item.tries, "The connection was lost");
    end(item, "failed", "The server does not answer.");
  });
  const { to, archives } = drop().dataset;
  request.open("POST", archives && /\.zip$/i.test(item.file.name) ? archives : to);
  request.setRequestHeader("Accept", "application/json");
  request.send(body);
  say(item, "starting");
}

function later(item, seconds, why) {
  item.share = 0;
  item.bar.value = 0;
  say(item, `${why}: retry in ${seconds} s`);
  item.retry = setTimeout(() => send(item), seconds * 1000);
}

function accepted(item, answer) {
  const shows = answer.id ?? answer.nearest_id;
  if (shows) {
    const link = document.createElement("a");
    link.href = drop().dataset.shows + encodeURIComponent(shows);
    link.textContent = item.path;
    item.name.replaceChildren(link);
  }
  item.share = 1;
  end(item, "sent", outcome(answer));
  refresh();
}

// The outcome for a document, an archive or a frame, in words.
function outcome(answer) {
  if (answer.files) {
    const refused = answer.files.filter((file) => !file.document);
    const named = refused.slice(0, 3).map((file) => `${file.name} (${file.reason})`).join(", ");
    return `${files(answer.files.length - refused.length)} sent${refused.length ? `; left out: ${named}${refused.length > 3 ? " …" : ""}` : ""}`;
  }
  if (answer.status === "COMPLETED") return "already converted";
  if (answer.outcome === "duplicate") return `left out: ${answer.distance || "none"} of 256 bits differ from frame ${answer.nearest_id}`;
  return { known: "already here", excluded: "left out: excluded", inactive: "left out: its source is off" }[answer.outcome] ?? "sent";
}

function next() {
  while (active.size < AT_ONCE && waiting.length) send(waiting.shift());
  tell();
}

function add(convertible, others) {
  if (!active.size && !waiting.length) {
    all = [];
    passed = [];
    id("uploads-list").replaceChildren();
  }
  passed.push(...others);
  const chosen = options();
  for (const { file, path } of convertible) {
    const item = { file, path, options: chosen, share: 0, tries: 0, state: "waiting" };
    all.push(item);
    waiting.push(item);
    const row = line(item);
    if (all.length <= SHOWN) id("uploads-list").append(row);
  }
  const names = passed.slice(0, 5).join(", ") + (passed.length > 5 ? ` and ${(passed.length - 5).toLocaleString("en")} more` : "");
  const beyond = all.length > SHOWN ? ` ${files(all.length - SHOWN)} more are sent but not listed.` : "";
  id("uploads-passed").textContent = (passed.length ? `Skipped, because of their types: ${names}.` : "") + beyond;
  id("uploads-passed").hidden = !passed.length && !beyond;
  id("uploads").hidden = !all.length && !passed.length;
  next();
}

// From a folder, send only files that Penstock can convert, as `penstock convert` does; always send a file chosen itself.
function sorted(list, inFolder) {
  const suffixes = new RegExp(`\\.(${drop().dataset.suffixes})$`, "i");
  const convertible = [];
  const others = [];
  for (const file of list) {
    const path = file.webkitRelativePath || file.path_ || file.name;
    const below = inFolder || file.inFolder;
    if (below && path.split("/").some((part) => part.startsWith("."))) continue;
    if (below && !suffixes.test(file.name)) others.push(path);
    else convertible.push({ file, path });
  }
  return [convertible, others];
}

async function filesBelow(entry, into) {
  if (entry.isFile) {
    const file = await new Promise((resolve) => entry.file(resolve, () => resolve(null)));
    if (!file) return;
    file.path_ = entry.fullPath.replace(/^\//, "");
    file.inFolder = file.path_.includes("/");
    into.push(file);
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
    if (!some.length) return;
    for (const child of some) await filesBelow(child, into);
  }
}

const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
let inside = 0;
document.addEventListener("dragenter", (event) => {
  if (!carriesFiles(event) || !drop()) return;
  inside += 1;
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", () => {
  inside = Math.max(0, inside - 1);
  if (!inside) document.body.classList.remove("dropping");
});
document.addEventListener("dragover", (event) => {
  if (carriesFiles(event)) event.preventDefault();
});
document.addEventListener("drop", async (event) => {
  if (!carriesFiles(event) || !drop()) return;
  event.preventDefault();
  inside = 0;
  document.body.classList.remove("dropping");
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const dropped = [];
  if (entries.length) for (const entry of entries) await filesBelow(entry, dropped);
  else dropped.push(...event.dataTransfer.files);
  add(...sorted(dropped, false));
});
document.addEventListener("click", (event) => {
  if (event.target.id === "choose") id("files").click();
  if (event.target.id === "choose-folder") id("folder").click();
  if (event.target.id === "uploads-close") id("uploads").hidden = true;
  if (event.target.id === "uploads-cancel") for (const item of [...waiting, ...active]) cancel(item);
});
document.addEventListener("change", (event) => {
  if (event.target.id !== "files" && event.target.id !== "folder") return;
  const chosen = [...event.target.files];
  event.target.value = "";
  add(...sorted(chosen, event.target.id === "folder"));
});
document.addEventListener("submit", (event) => {
  if (event.target.id === "drop") event.preventDefault(); // Enter in an option submits nothing: choosing files sends them
});
window.addEventListener("beforeunload", (event) => {
  if (active.size || waiting.length) event.preventDefault();
});
