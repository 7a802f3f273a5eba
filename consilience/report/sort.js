"use strict";
// Press a heading to sort by its column; rows stay within their group, and what is missing comes last.
const UNITS = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
const shown = (row, column) => row.cells[column]?.childNodes[0]?.textContent.trim() ?? "";
function worth(text) {
  const found = /^([−+-]?[\d\u00a0 .]*\d(?:e[−+-]?\d+)?)\s*([kMGT]?B)?/.exec(text.replace(/^[<~]\s*/, ""));
  return found ? Number(found[1].replaceAll("−", "-").replace(/[\u00a0 ]/g, "")) * (UNITS[found[2]] ?? 1) : NaN;
}
function compare(a, b) {
  const [x, y] = [worth(a), worth(b)];
  if (Number.isNaN(x) && Number.isNaN(y)) return a.localeCompare(b);
  return Number.isNaN(x) ? Infinity : Number.isNaN(y) ? -Infinity : x - y;
}
function sort(table, heading, column) {
  const falling = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => row.cells.length > 1);
    const order = (p, q) => {
      const by = compare(shown(p, column), shown(q, column));
      return Number.isFinite(by) && falling ? -by : by;
    };
    rows.sort(order).forEach((row) => body.append(row));
  }
}
for (const heading of document.querySelectorAll("th[data-column]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...heading.childNodes);
  button.addEventListener("click", () => sort(heading.closest("table"), heading, Number(heading.dataset.column)));
  heading.append(button);
}
// A table that is wider than its place says so, for as long as something is hidden to its right.
const MORE = "More columns to the right: scroll →";
const MARGIN = 12; // the padding of a cell: where no more is cut off, nothing is hidden
function mark(box) {
  const hidden = box.scrollWidth - box.clientWidth - box.scrollLeft;
  const wide = box.scrollWidth > box.clientWidth + MARGIN;
  box.classList.toggle("wide", wide);
  let note = box.previousElementSibling?.classList.contains("more") ? box.previousElementSibling : null;
  if (!note && wide) {
    note = document.createElement("p");
    note.className = "more";
    note.textContent = MORE;
    box.before(note);
  }
  if (note) note.style.visibility = wide && hidden > 1 ? "visible" : "hidden";
}
for (const box of document.querySelectorAll(".scroll")) {
  box.addEventListener("scroll", () => mark(box), { passive: true });
  new ResizeObserver(() => mark(box)).observe(box);
}
