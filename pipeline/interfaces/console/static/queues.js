// Close a dialog when its form is submitted or cancelled.
document.addEventListener("submit", (event) => event.target.closest("dialog:not(#ask, #keys)")?.close());
document.addEventListener("click", (event) => event.target.closest("[data-closes]")?.closest("dialog").close());
