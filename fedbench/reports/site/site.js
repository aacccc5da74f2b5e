
"use strict";
(() => {
  const root = document.documentElement, key = "fedbench-theme";
  const stored = (theme) => {
    try { return theme ? localStorage.setItem(key, theme) : localStorage.getItem(key); } catch { return null; }
  };
  if (stored()) root.dataset.theme = stored();

  const value = (row, column) => row.cells[column]?.dataset.value ?? row.cells[column]?.textContent.trim() ?? "";
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  };

  // Sorts rows within their class only; a row with the CSS class "class" begins the next class.
  function sort(head) {
    const table = head.closest("table"), body = table.tBodies[0];
    const first = head.dataset.first === "descending" ? ["descending", "ascending"] : ["ascending", "descending"];
    const way = head.ariaSort === first[0] ? first[1] : first[0];
    for (const other of table.tHead.rows[0].cells) other.ariaSort = "none";
    head.ariaSort = way;
    const sign = way === "ascending" ? 1 : -1, classes = [[]];
    for (const row of body.rows) {
      if (row.className === "class") classes.push([row], []);
      else classes.at(-1).push(row);
    }
    for (const rows of classes) {
      const keyed = rows.map((row) => [value(row, head.cellIndex), row]);
      keyed.sort(([a], [b]) => (a === "" || b === "" ? (a === "") - (b === "") : sign * compare(a, b)));
      body.append(...keyed.map(([, row]) => row));
    }
  }

  // Hides the rows that do not match the filters in front of their table.
  function filter(tools) {
    const words = tools.querySelector("input")?.value.toLowerCase().split(/\s+/).filter(Boolean) ?? [];
    const chosen = [...tools.querySelectorAll("select")].filter((one) => one.value);
    const table = [...document.querySelectorAll("table")].find(
      (one) => tools.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING);
    const rows = [...table.tBodies[0].rows].filter((row) => row.className !== "class");
    const fits = (row, one) => (one.dataset.filter === "cost"
      ? Number(row.dataset.cost ?? Infinity) <= Number(one.value) : row.dataset[one.dataset.filter] === one.value);
    for (const row of rows) {
      const text = `${row.textContent} ${row.dataset.words}`.toLowerCase();
      row.hidden = !(words.every((word) => text.includes(word)) && chosen.every((one) => fits(row, one)));
    }
    const left = rows.filter((row) => !row.hidden).length;
    tools.querySelector("output").textContent = left < rows.length ? `${left} of ${rows.length} rows` : "";
  }

  // Adds checkboxes that show and hide the columns of the next table.
  function choose(box) {
    const table = box.nextElementSibling.querySelector("table");
    const show = (index, shown) => {
      for (const row of table.rows) if (row.cells[index]) row.cells[index].hidden = !shown;
    };
    [...table.tHead.rows[0].cells].forEach((head, index) => {
      if (index === 0) return;
      const label = document.createElement("label"), tick = document.createElement("input");
      Object.assign(tick, { type: "checkbox", checked: !("off" in head.dataset), onchange: () => show(index, tick.checked) });
      label.append(tick, " ", head.innerText.replace(/\s+/g, " "));
      box.lastElementChild.append(label);
      if (!tick.checked) show(index, false);
    });
  }

  // Makes the numbers of papers' tables buttons, which the keyboard reaches.
  function offer(table) {
    for (const cell of table.querySelectorAll("tr[data-method] > td")) {
      if (["", "N/A"].includes(cell.textContent.trim())) continue;
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "number", title: "the command that makes it" });
      button.append(...cell.childNodes);
      cell.append(button);
    }
  }

  // Shows the command that fills a cell in a row below it; once more: hides it.
  function command(cell) {
    const row = cell.closest("tr"), { table, budget } = cell.closest("[data-table]").dataset;
    const heads = cell.closest("table").querySelector("thead tr:last-child").cells;
    const column = heads[cell.cellIndex].dataset.column;
    const quoted = (text) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
    const place = `--table ${quoted(table)}` + (budget ? ` --budget ${quoted(budget)}` : "") + ` --column ${quoted(column)}`;
    const shipped = cell.querySelector(".state") ? "" : " --include-shipped"; // a number that is there is trained, too
    const line = budget ? `fedbench train ${place} -m ${quoted(row.dataset.method)}${shipped}` : `fedbench report ${place}`;
    const before = cell.closest("tbody").querySelector("tr.made");
    before?.remove();
    if (before?.dataset.line === line) return;
    const made = document.createElement("tr"), box = made.insertCell();
    made.className = "made";
    made.dataset.line = line;
    box.colSpan = heads.length;
    const code = document.createElement("code"), copy = document.createElement("button");
    code.textContent = line;
    Object.assign(copy, { type: "button", textContent: "Copy" });
    const shown = document.createElement("div");
    shown.className = "command";
    shown.append(code, copy);
    box.append(shown);
    row.after(made);
  }

  // The visible rows and columns of a table as CSV, without the marks at its numbers and names (which CSS hides for so
  // long); its heads are one row. A text that a spreadsheet would read as a formula gets an apostrophe in front, a minus
  // sign is a hyphen.
  function csv(table) {
    root.classList.add("unmarked");
    const shown = (row) => [...row.cells].filter((cell) => cell.checkVisibility());
    const text = (cell) => {
      const words = cell.innerText.replace(/[\s\u00a0]+/g, " ").trim().replace(/\u2212(?=[\d.])/g, "-");
      return /^[=+@-]/.test(words) && !/^[+-]?[\d.,]+[*?]?$/.test(words) ? `'${words}` : words;
    };
    const wide = (cell, rest) => [text(cell), ...Array(cell.colSpan - 1).fill(rest ?? text(cell))];
    const levels = [...table.tHead.rows].map((row) => shown(row).flatMap((cell) => wide(cell)));
    const head = levels.at(-1).map((_, k) => levels.map((level) => level[k]).filter(Boolean).join("/"));
    const rows = [...table.tBodies[0].rows].filter((row) => row.checkVisibility() && row.className !== "made");
    const lines = [head, ...rows.map((row) => shown(row).flatMap((cell) => wide(cell, "")).slice(0, head.length))];
    root.classList.remove("unmarked");
    return lines
      .map((row) => row.map((field) => (/[",]/.test(field) ? `"${field.replaceAll('"', '""')}"` : field)).join(","))
      .join("\r\n") + "\r\n";
  }

  function save(table) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
    link.download = `${document.title} ${table.closest("[data-table]")?.dataset.table ?? ""}`.trim().replace(/[^\w-]+/g, "-") + ".csv";
    link.click();
    URL.revokeObjectURL(link.href);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button"), cell = event.target.closest("td");
    if (button?.id === "theme") {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      stored(root.dataset.theme = dark ? "light" : "dark");
    } else if (button?.parentElement.matches("thead th")) sort(button.parentElement);
    else if (button?.matches(".number")) command(cell);
    else if (button?.matches(".csv")) save(button.nextElementSibling.querySelector("table"));
    else if (button?.matches(".command button")) {
      navigator.clipboard?.writeText(button.previousElementSibling.textContent);
      button.textContent = "Copied";
    } else if (cell && !event.target.closest("a") && !String(getSelection())) {
      cell.closest("tr[data-words]")?.querySelector("a").click(); // in the index of runs, a row links to its page
    }
  });
  for (const event of ["input", "change"]) {
    document.addEventListener(event, ({ target }) => { if (target.closest?.(".tools")) filter(target.closest(".tools")); });
  }
  // Unfolds the table that the address names.
  const open = () => {
    const there = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (there && there.matches("details")) { there.open = true; there.scrollIntoView(); }
  };
  addEventListener("hashchange", open);
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("details.columns").forEach(choose);
    for (const box of document.querySelectorAll(".scroll:has(table)")) {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "csv", textContent: "CSV" });
      button.title = "what is shown of this table, as a file";
      box.before(button);
    }
    document.querySelectorAll("[data-table] table").forEach(offer);
    open();
  });
  // Applies filters whose values the browser restored.
  addEventListener("pageshow", () => document.querySelectorAll(".tools").forEach(filter));
})();
