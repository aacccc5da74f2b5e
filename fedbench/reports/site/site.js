
"use strict";
(() => {
  const root = document.documentElement, key = "fedbench-theme";
  const stored = (theme) => {
    try { return theme ? localStorage.setItem(key, theme) : localStorage.getItem(key); } catch { return null; }
  };
  if (stored()) root.dataset.theme = stored();

  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  };

  function sort(head) {
    const table = head.closest("table"), body = table.tBodies[0];
    const first = head.dataset.first === "descending" ? ["descending", "ascending"] : ["ascending", "descending"];
    const way = head.ariaSort === first[0] ? first[1] : first[0];
    for (const other of table.tHead.rows[0].cells) other.ariaSort = "none";
    head.ariaSort = way;
    const sign = way === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => [value(row, head.cellIndex), row]);
    rows.sort(([a], [b]) => (a === "" || b === "" ? (a === "") - (b === "") : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
  }

  function filter(words) {
    const rows = [...document.querySelectorAll("tbody tr")];
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => `${row.textContent} ${row.dataset.words}`.toLowerCase();
    for (const row of rows) row.hidden = !wanted.every((word) => text(row).includes(word));
    const left = rows.filter((row) => !row.hidden).length;
    document.querySelector("output").textContent = left < rows.length ? `${left} of ${rows.length} rows` : "";
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.id === "theme") {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      stored(root.dataset.theme = dark ? "light" : "dark");
    } else if (button?.parentElement.matches("thead th")) sort(button.parentElement);
    else if (button?.matches(".command button")) {
      navigator.clipboard?.writeText(button.previousElementSibling.textContent);
      button.textContent = "Copied";
    } else if (!event.target.closest("a") && !String(getSelection())) {
      event.target.closest("tbody tr")?.querySelector("a")?.click();
    }
  });
  document.addEventListener("input", (event) => { if (event.target.id === "filter") filter(event.target.value); });
  // What a browser has kept of the box when one comes back.
  addEventListener("pageshow", () => { const box = document.getElementById("filter"); if (box?.value) filter(box.value); });
})();
