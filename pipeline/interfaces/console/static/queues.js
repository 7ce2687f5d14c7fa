// A dialog that was sent, or cancelled, is over.
document.addEventListener("submit", (event) => event.target.closest("dialog:not(#ask, #keys)")?.close());
document.addEventListener("click", (event) => event.target.closest("[data-closes]")?.closest("dialog").close());
