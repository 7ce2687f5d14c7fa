// The log pauses while its details are open: it drops the stream. On “Continue” it shows all events since.

const button = document.getElementById("flow-stops");
const says = document.getElementById("flow-says");
const place = document.getElementById("event-stream");
const stream = place?.innerHTML;

function pause(why) {
  place.replaceChildren();
  button.textContent = "Continue";
  button.setAttribute("aria-pressed", "true");
  says.textContent = why;
  says.hidden = false;
}

function go() {
  for (const open of document.querySelectorAll("#event-list details[open]")) open.open = false;
  place.innerHTML = stream;
  window.htmx.process(place);
  button.textContent = "Pause";
  button.setAttribute("aria-pressed", "false");
  says.hidden = true;
}

if (button && place) {
  button.hidden = false;
  button.addEventListener("click", () => {
    if (button.getAttribute("aria-pressed") === "true") go();
    else pause("Paused");
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.open && event.target.closest?.("#event-list") && button.getAttribute("aria-pressed") !== "true") pause("Paused while you read");
  }, true);
}
