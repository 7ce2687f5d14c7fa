// The list of documents: keys move through its rows, rows are selected, filters apply at once.

import { isTyping } from "./console.js";

const form = () => document.getElementById("some");
const boxes = () => [...document.querySelectorAll('.documents tbody input[name="id"]')];
const links = () => [...document.querySelectorAll(".documents tbody .name a")];

function showSelected() {
  const chosen = boxes().filter((box) => box.checked).length;
  const words = document.getElementById("selected-count");
  if (words) words.textContent = `${chosen} selected:`;
  const all = document.getElementById("all");
  if (!all) return;
  all.hidden = false;
  all.checked = chosen > 0 && chosen === boxes().length;
  all.indeterminate = chosen > 0 && !all.checked;
}

let last = null;
document.addEventListener("click", (event) => {
  const box = event.target.closest?.('.documents input[name="id"]');
  if (!box) return;
  if (event.shiftKey && last?.isConnected) {
    const all = boxes();
    const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((a, b) => a - b);
    for (const row of all.slice(from, to + 1)) row.checked = box.checked;
  }
  last = box;
  showSelected();
});
document.addEventListener("change", (event) => {
  if (event.target.id === "all") for (const box of boxes()) box.checked = event.target.checked;
  if (event.target.matches("#all, .documents input")) showSelected();
});
document.addEventListener("reset", (event) => {
  if (event.target === form()) setTimeout(showSelected);
});
document.addEventListener("htmx:after:swap", showSelected);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping(event) || !["j", "k", "x"].includes(event.key)) return;
  const all = links();
  if (!all.length) return;
  const at = all.findIndex((link) => link.closest("tr").contains(document.activeElement));
  event.preventDefault();
  if (event.key === "x") {
    const box = boxes()[Math.max(0, at)];
    box.checked = !box.checked;
    showSelected();
    return;
  }
  const next = event.key === "j" ? Math.min(at + 1, all.length - 1) : Math.max(at - 1, 0);
  all[next].focus();
  all[next].closest("tr").scrollIntoView({ block: "nearest" });
});

showSelected();
