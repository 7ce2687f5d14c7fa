// Dropped files, folder names, upload progress, and the picture of the page beside its chunks.

for (const form of document.querySelectorAll("form[enctype]")) {
  const input = form.querySelector("input[type=file]");
  const zone = form.querySelector(".drop");
  for (const name of ["dragenter", "dragover"]) zone.addEventListener(name, (event) => { event.preventDefault(); zone.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) zone.addEventListener(name, () => zone.classList.remove("over"));
  if ("drop" in form.dataset) zone.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) input.files = event.dataTransfer.files;
  });
  if ("folder" in form.dataset) input.addEventListener("change", () => {
    const path = input.files[0]?.webkitRelativePath ?? "";
    if (path && !form.groupName.value) form.groupName.value = path.split("/")[0];
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const bar = form.querySelector("progress");
    const button = form.querySelector("button");
    const request = new XMLHttpRequest();
    const end = () => { bar.hidden = true; button.disabled = false; };
    request.upload.onprogress = (now) => { bar.hidden = false; bar.max = now.total; bar.value = now.loaded; };
    request.onerror = end;
    request.onload = () => {
      const to = request.getResponseHeader("HX-Redirect");
      if (to) { location.assign(to); return; }
      end();
      const message = new DOMParser().parseFromString(request.responseText, "text/html").querySelector("p");
      if (message) document.getElementById("said").replaceChildren(message);
    };
    request.open("POST", form.action);
    request.setRequestHeader("HX-Request", "true"); // answer with an address to go to, or a message
    button.disabled = true;
    request.send(new FormData(form));
  });
}

const page = document.getElementById("kb-page");
if (page) {
  let later;
  const show = (number) => {
    const shown = page.querySelector("b");
    if (!number || shown.textContent === number) return;
    shown.textContent = number;
    const image = page.querySelector("img");
    image.src = `${page.dataset.at}${number}/picture?width=1000`;
    image.alt = `Page ${number} of the file`;
  };
  const settle = () => {
    const chunks = [...document.querySelectorAll(".chunk[data-page]")];
    const chosen = document.querySelector(".chunk:target");
    const box = chosen?.getBoundingClientRect();
    const top = box && box.bottom > 60 && box.top < innerHeight ? chosen : chunks.find((chunk) => chunk.getBoundingClientRect().bottom > 120);
    show(top?.dataset.page);
  };
  addEventListener("scroll", () => { clearTimeout(later); later = setTimeout(settle, 250); }, { passive: true });
}
