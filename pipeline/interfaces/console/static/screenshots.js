// Links between lines of text and their places on the picture; retries of refused pictures.

function mark(from, on) {
  const seen = from.closest(".seen");
  for (const place of seen.querySelectorAll(`[data-line="${from.dataset.line}"]:not(.word)`)) place.classList.toggle("on", on);
}

document.addEventListener("mouseover", (event) => {
  const from = event.target.closest?.(".seen [data-line]");
  if (from) mark(from, true);
});
document.addEventListener("mouseout", (event) => {
  const from = event.target.closest?.(".seen [data-line]");
  if (from) mark(from, false);
});
document.addEventListener("click", (event) => {
  const from = event.target.closest?.(".seen [data-line]");
  if (!from) return;
  const selector = from.matches("li") ? "rect.line" : "li";
  from.closest(".seen").querySelector(`${selector}[data-line="${from.dataset.line}"]`)?.scrollIntoView({ block: "nearest" });
});

// Scroll the list of lines to the first matching word; the window stays.
function show() {
  const first = document.querySelector(".lines li.has");
  if (first) first.parentElement.scrollTop = first.offsetTop - first.parentElement.offsetTop - 40;
}
show();
document.addEventListener("htmx:after:swap", show);

// The server refuses pictures when too many are requested at once: fetch those later.
document.addEventListener("error", (event) => {
  const picture = event.target;
  if (!picture.matches?.(".thumb img, .picture img")) return;
  const tries = Number(picture.dataset.tries ?? 0);
  if (tries >= 3) return;
  picture.dataset.tries = tries + 1;
  setTimeout(() => { const { src } = picture; picture.src = ""; picture.src = src; }, 1500 * (tries + 1));
}, true);
