// Draws the static report and makes it handier: sort the programs, fold all sections, copy a fix. When a later report of
// the same run takes its place, sections stay as the reader folded them.
const SCALE = { "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

function button(label, hint, action) {
  const element = document.createElement("button");
  element.type = "button";
  element.className = "tm-button";
  element.textContent = label;
  element.title = hint;
  element.addEventListener("click", (event) => {
    event.preventDefault();
    action(element);
  });
  return element;
}

// "1 min 5 s" and "1.5 GiB" as numbers; what is not known sorts last.
function amount(cell) {
  const parts = [...cell.textContent.matchAll(/([\d.,]+)\s*(\S*)/g)];
  if (!parts.length) return -1;
  return parts.reduce((sum, [, digits, unit]) => sum + Number(digits.replaceAll(",", "")) * (SCALE[unit] ?? 1), 0);
}

function makeSortable(table) {
  const body = table.tBodies[0];
  [...table.querySelectorAll("thead th.tm-number")].forEach((head) => {
    const name = head.textContent;
    head.replaceChildren(button(name, `Sort by ${name}`, () => {
      const column = head.cellIndex;
      const rows = [...body.rows].sort((a, b) => amount(b.cells[column]) - amount(a.cells[column]));
      body.append(...rows);
    }));
  });
}

function addCopy(fix) {
  const text = fix.textContent.replace(/^fix:\s*/, "");
  fix.append(" ", button("copy", "Copy this fix", async (element) => {
    try {
      await navigator.clipboard.writeText(text);
      element.textContent = "copied";
    } catch {
      element.textContent = "not allowed here";
    }
  }));
}

function render({ model, el }) {
  const title = (section) => section.querySelector("summary")?.textContent;
  const draw = () => {
    const before = new Map([...el.querySelectorAll("details")].map((section) => [title(section), section.open]));
    el.innerHTML = model.get("content");
    const sections = [...el.querySelectorAll("details")];
    sections.forEach((section) => { section.open = before.get(title(section)) ?? section.open; });
    const fold = button("unfold all", "Unfold or fold all sections", (element) => {
      const open = sections.some((section) => !section.open);
      sections.forEach((section) => { section.open = open; });
      element.textContent = open ? "fold all" : "unfold all";
    });
    el.querySelector(".tm-head")?.append(fold);
    el.querySelectorAll(".tm-programs").forEach(makeSortable);
    el.querySelectorAll(".tm-fix").forEach(addCopy);
  };
  draw();
  model.on("change:content", draw);
  return () => model.off("change:content", draw);
}

export default { render };
