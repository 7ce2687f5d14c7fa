// One document: a block on the picture and its text mark each other; failed pictures are fetched again; so is the page
// when its text changes.

const TRIES = 5;

function both(id) {
  return document.querySelectorAll(`.paper a[data-block="${CSS.escape(id)}"], .text section[data-block="${CSS.escape(id)}"]`);
}

function mark(name, id) {
  for (const element of document.querySelectorAll(`.desk .${name}`)) element.classList.remove(name);
  if (id) for (const element of both(id)) element.classList.add(name);
}

// Scroll only the element's own column, not the window.
function reveal(element) {
  const column = element?.closest(".paper, .text, .strip");
  if (!column) return;
  if (column.scrollHeight <= column.clientHeight && column.scrollWidth <= column.clientWidth) {
    if (!column.matches(".strip")) element.scrollIntoView({ block: "nearest" });
    return;
  }
  const box = element.getBoundingClientRect();
  const seen = column.getBoundingClientRect();
  const above = column.querySelector(".bar2, .where")?.offsetHeight ?? 0;
  if (box.top < seen.top + above) column.scrollTop += box.top - seen.top - above - 12;
  else if (box.bottom > seen.bottom) column.scrollTop += Math.min(box.bottom - seen.bottom + 12, box.top - seen.top - above - 12);
  if (box.left < seen.left) column.scrollLeft += box.left - seen.left - 12;
  else if (box.right > seen.right) column.scrollLeft += box.right - seen.right + 12;
}

function blockOf(event) {
  return event.target.closest?.(".desk [data-block]") ?? null;
}

document.addEventListener("pointerover", (event) => mark("near", blockOf(event)?.dataset.block));
document.addEventListener("focusin", (event) => { if (blockOf(event)) mark("near", blockOf(event).dataset.block); });
document.addEventListener("click", (event) => {
  const clicked = blockOf(event);
  if (!clicked || event.ctrlKey || event.metaKey) return;
  const link = event.target.closest("a");
  if (clicked.matches("section") && (link?.closest(".prose") && !link.matches(".to-box"))) return;
  if (clicked.matches("section") && String(getSelection())) return;
  if (link) event.preventDefault();
  const { block } = clicked.dataset;
  mark("on", block);
  for (const element of both(block)) if (element !== clicked && !element.contains(clicked)) reveal(element);
  if (link?.matches(".to-box")) document.getElementById(`box-${block}`)?.focus({ preventScroll: true });
  else if (event.detail === 0) document.getElementById(block)?.focus({ preventScroll: true });
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open], details.menu[open]")) mark("on", "");
});

// The server refuses pictures when too many are requested at once: fetch those later.
document.addEventListener("error", (event) => {
  const picture = event.target;
  if (!(picture instanceof HTMLImageElement) || !picture.closest(".desk")) return;
  const tried = Number(picture.dataset.tried ?? 0) + 1;
  picture.dataset.tried = tried;
  if (tried < TRIES) {
    const { src, srcset } = picture;
    setTimeout(() => {
      if (!picture.isConnected || picture.src !== src) return;
      if (srcset) picture.srcset = srcset;
      picture.src = src;
    }, 400 * 2 ** tried * (0.7 + Math.random() * 0.6));
  } else {
    const missing = picture.closest(".paper")?.querySelector(".gone");
    if (missing) missing.hidden = false;
  }
}, true);

// The page's text or the possible actions changed. The server pushes only what is the same for all callers, so fetch the
// rest, but not while a menu or dialog is open.
let refreshedAt = 0;
let waiting = null;
function isBusy() {
  return document.querySelector("main details.menu[open], dialog[open]") !== null;
}
function isOutdated() {
  const desk = document.getElementById("desk");
  const cell = document.getElementById(`cell-${document.getElementById("text")?.dataset.page}`);
  const facts = document.getElementById("version");
  if (!desk || !facts) return false;
  const other = document.getElementById("text") === null && document.querySelector("#facts b");
  return other || desk.dataset.version !== facts.dataset.version || (cell && desk.dataset.pageVersion !== cell.dataset.version);
}
function refresh() {
  clearTimeout(waiting);
  if (!isOutdated()) return;
  const waitMs = refreshedAt + 1000 - Date.now();
  if (waitMs > 0 || isBusy()) {
    waiting = setTimeout(refresh, Math.max(waitMs, 300));
    return;
  }
  refreshedAt = Date.now();
  document.body.dispatchEvent(new CustomEvent("changed"));
}
document.addEventListener("toggle", (event) => {
  if (event.target.matches?.("details.menu") && event.target.open) event.target.querySelector("select, div > a, button")?.focus();
}, true);

// Mark the chosen page in the strip at once, so that the next key press continues from it even before it is loaded.
function stand(page) {
  for (const cell of document.querySelectorAll(".strip li")) {
    const here = cell.id === `cell-${page}`;
    cell.classList.toggle("here", here);
    if (here) cell.firstElementChild.setAttribute("aria-current", "page");
    else cell.firstElementChild.removeAttribute("aria-current");
  }
}
document.addEventListener("click", (event) => {
  const link = event.target.closest?.(".strip a[href]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const pages = Number(document.getElementById("strip").dataset.pages);
  const page = Number(new URL(link.href).searchParams.get("page"));
  stand(page);
  document.querySelector(".strip .at").textContent = `${page.toLocaleString("en")} / ${pages.toLocaleString("en")}`;
  reveal(document.querySelector(".strip .here"));
  for (const step of document.querySelectorAll(".strip .where a[href]")) {
    const to = new URL(step.href);
    to.searchParams.set("page", Math.min(pages, Math.max(1, page + (step.rel === "next" ? 1 : -1))));
    for (const name of ["href", "hx-get"]) step.setAttribute(name, to.pathname + to.search);
  }
});

// After a swap, show another page from its top.
let shown = document.getElementById("text")?.dataset.page;
function settle() {
  const page = document.getElementById("text")?.dataset.page;
  if (page !== shown) {
    for (const column of document.querySelectorAll(".text, .paper")) column.scrollTop = 0;
    mark("on", "");
    shown = page;
    stand(page);
    reveal(document.querySelector(".strip .here"));
  } else if (page && !document.querySelector(".strip .here")) {
    stand(page);
  }
  refresh();
}
document.addEventListener("htmx:after:swap", settle);
reveal(document.querySelector(".strip .here"));
if (location.hash.startsWith("#b")) mark("on", location.hash.slice(1));
else reveal(document.querySelector(".text section.found"));
