// Scripts for every screen: relative times, confirmation dialogs, keys, and the label that shows whether it is live.

const LIVE = document.getElementById("live");
const STEPS = [[31536000, "y"], [86400, "d"], [3600, "h"], [60, "min"]];

function ago(moment) {
  const seconds = (Date.now() - moment) / 1000;
  const distance = Math.abs(seconds);
  if (distance < 5 && seconds >= 0) return "just now";
  const [length, unit] = STEPS.find(([step]) => distance >= step) ?? [1, "s"];
  const text = `${Math.floor(distance / length)} ${unit}`;
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

export function tellTimes(root = document) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    const words = ago(moment.valueOf());
    if (!time.hasAttribute("data-exact") && time.textContent !== words) time.textContent = words;
    const exact = moment.toLocaleString();
    if (time.title !== exact) time.title = exact;
  }
}

tellTimes();
// Every second, because waits of seconds are shown, such as “in 7 s”.
setInterval(() => { if (!document.hidden) tellTimes(); }, 1000);
document.addEventListener("htmx:after:swap", () => tellTimes());

// The label shows whether changes arrive.
function say(words, lost) {
  if (!LIVE) return;
  LIVE.hidden = false;
  LIVE.textContent = words;
  LIVE.classList.toggle("lost", lost);
}
document.addEventListener("htmx:sse:after:connection", () => say("live", false));
document.addEventListener("htmx:sse:error", () => say("reconnecting…", true));
document.addEventListener("htmx:response:error", (event) => {
  if (event.target.matches?.(".stream")) say("not live: reload", true);
});

// Forms with `data-confirm` ask first.
const ask = document.getElementById("ask");
let asking = null;
document.addEventListener("submit", (event) => {
  const form = event.target;
  const words = event.submitter?.dataset.confirm ?? form.dataset.confirm;
  if (!words || form === asking) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  document.getElementById("ask-words").textContent = words;
  document.getElementById("ask-yes").textContent = event.submitter?.textContent?.trim() || "Continue";
  const { submitter } = event;
  ask.returnValue = "no";
  ask.showModal();
  ask.addEventListener("close", () => {
    if (ask.returnValue !== "yes") return;
    asking = form;
    form.requestSubmit(submitter);
    asking = null;
  }, { once: true });
}, true);

// The message of an action can be dismissed, and disappears after a while unless it is an error.
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-dismiss]")) event.target.closest("p").remove();
  const opens = event.target.closest("[data-opens]");
  if (opens) document.getElementById(opens.dataset.opens)?.showModal();
  const toggles = event.target.closest("[data-toggles]");
  if (toggles) toggles.setAttribute("aria-expanded", String(toggles.getAttribute("aria-expanded") !== "true"));
  const copies = event.target.closest("[data-copies]");
  if (copies) {
    const from = document.getElementById(copies.dataset.copies);
    navigator.clipboard?.writeText(from.value ?? from.textContent).then(() => { copies.textContent = "Copied"; });
  }
});
let fading;
new MutationObserver(() => {
  clearTimeout(fading);
  fading = setTimeout(() => document.querySelector("#said .ok")?.remove(), 8000);
}).observe(document.getElementById("said"), { childList: true });

// Keys focus or click the element with that `data-key`, except during typing.
export function isTyping(event) {
  return event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable], dialog[open]") !== null;
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
  if (event.key === "?") {
    document.getElementById("keys").showModal();
    event.preventDefault();
    return;
  }
  const target = [...document.querySelectorAll("[data-key]")].filter((element) => element.dataset.key === event.key && element.offsetParent).pop();
  if (!target) return;
  event.preventDefault();
  if (target.matches("input, textarea, select")) target.focus();
  else target.click();
});

// Filters apply when they change; without scripts, their button applies them.
document.addEventListener("change", (event) => {
  const form = event.target.form;
  if (form?.matches("[data-submits]") && event.target.matches("select, [type=checkbox], [type=radio], [type=date]")) form.requestSubmit();
});

// One menu at a time.
document.addEventListener("toggle", (event) => {
  if (!event.target.matches?.("details.menu") || !event.target.open) return;
  for (const other of document.querySelectorAll("details.menu[open]")) if (other !== event.target) other.open = false;
}, true);
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
