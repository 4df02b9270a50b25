// Helpers, the theme, and the tables of scores, costs and lost answers.
const data = JSON.parse(document.getElementById("data").textContent);
const results = data.results;
const $ = (id) => document.getElementById(id);

/** Make an element. All text comes in as text nodes: what a model wrote is never read as HTML. */
function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const percent = (value, digits = 1) => (100 * value).toFixed(digits);
const signed = (value) => (value > 0 ? "+" : "") + percent(value);
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const columnName = (item) => item.dataset + (item.documents === null ? "" : `, ${item.documents} documents`);
const rowOf = (item) => item.row ?? (item.setting ? `${item.method}, ${item.setting}` : item.method);
const columns = [...new Set(results.cells.map(columnName))];
const rows = [...new Set(results.cells.map(rowOf))];
const cellAt = (row, column) => results.cells.find((cell) => cell.row === row && columnName(cell) === column);

/** How an evaluation is called where there may be several of one row and column. */
function evaluationName(index) {
  const item = results.evaluations[index];
  const several = results.evaluations.filter((other) => rowOf(other) === rowOf(item) && columnName(other) === columnName(item)).length > 1;
  return rowOf(item) + (columns.length > 1 ? ` on ${columnName(item)}` : "") + (several ? `, seed ${item.seed}` : "");
}

function table(caption, headings, lines) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption),
      el("thead", {}, el("tr", {}, headings.map((heading) => el("th", { scope: "col" }, heading)))),
      el("tbody", {}, lines.map(([first, ...rest]) =>
        el("tr", {}, el("th", { scope: "row" }, first), rest.map((cell) => el("td", {}, cell)))))));
}

/** One of the tables that tables.md holds too. Intervals are written, and drawn on the scale of the table. */
function resultTable(given) {
  const grouped = given.headings.some(([group]) => group);
  const runs = [];
  for (const [group] of given.headings) {
    if (runs.length && runs[runs.length - 1].group === group) runs[runs.length - 1].size += 1;
    else runs.push({ group, size: 1 });
  }
  const widest = Math.max(0.05, ...given.rows.flatMap(([, values]) => values.map((value) => value.ends ? Math.max(Math.abs(value.ends[1]), Math.abs(value.ends[2])) : 0)));
  const [from, to] = given.section === "comparisons" ? [-widest, widest] : [0, 1];
  const textual = given.headings.map(([, name]) => name === "on");
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": given.title },
    el("table", { class: given.headings.length <= 6 || given.section === "comparisons" ? "results roomy" : "results" }, el("caption", {}, given.title),
      el("thead", {},
        grouped ? el("tr", {}, el("td"), runs.map(({ group, size }) => el("th", { scope: "colgroup", colspan: size, class: "group" }, group))) : null,
        el("tr", {}, el("td"), given.headings.map(([, name], place) => el("th", { scope: "col", class: textual[place] ? "text" : null }, name)))),
      el("tbody", {}, given.rows.map(([row, values]) =>
        el("tr", {}, el("th", { scope: "row" }, row), values.map((value, place) => el("td", { class: textual[place] ? "text" : null }, resultValue(value, from, to))))))));
}

function resultValue(value, from, to) {
  const at = (number) => 100 * Math.min(1, Math.max(0, (number - from) / (to - from)));
  return [
    value.bold ? el("strong", {}, value.text) : value.text,
    value.interval ? el("div", { class: "interval" }, value.interval) : null,
    value.ends ? el("div", { class: from < 0 ? "forest middle" : "forest", "aria-hidden": "true" },
      el("i", { style: `left:${at(value.ends[1])}%;width:${at(value.ends[2]) - at(value.ends[1])}%` }), el("b", { style: `left:${at(value.ends[0])}%` })) : null,
    value.note ? el("div", { class: "interval" }, value.note) : null,
    value.warning ? el("strong", { class: "failures" }, value.warning) : null,
  ];
}

/** Tables of which one is shown at a time, chosen by its key; all of them in a print. */
function choice(id, label, tables, draw = (given) => [resultTable(given), given.note ? el("p", { class: "note" }, given.note) : null]) {
  if (tables.length < 2) return tables.map((given) => draw(given));
  const panes = tables.map((given, place) => el("div", { class: "pane", hidden: place > 0 }, draw(given)));
  const pick = (place) => { panes.forEach((pane, other) => { pane.hidden = other !== place; }); };
  const names = tables.map((given) => given.label ?? (given.key || given.title));
  if (names.length > 8 || names.join("").length > 90) {
    return [el("div", { class: "controls" }, el("label", {}, `${label} `, el("select", { id, onchange: (event) => pick(Number(event.target.value)) },
      names.map((name, place) => el("option", { value: place }, name))))), panes];
  }
  const buttons = names.map((name, place) => el("button", { type: "button", "aria-pressed": String(place === 0), onclick: () => {
    pick(place);
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === place)));
  } }, name));
  return [el("div", { class: "controls" }, el("fieldset", { id }, el("legend", {}, label), buttons)), panes];
}

const tablesOf = (...sections) => data.tables.filter((given) => sections.includes(given.section));
const byScore = (given) => ({ ...given, label: given.title.replace("Comparisons: ", "") });

function drawScores() {
  const section = $("scores");
  if (data.incomplete) section.append(el("p", { class: "warning", id: "incomplete" }, el("strong", {}, data.incomplete)));
  if (columns.length === 1) {
    section.append(el("div", { class: "tables" }, tablesOf("scores", "facts").map((given) => el("div", {}, resultTable(given), el("p", { class: "note" }, given.note)))));
  } else section.append(...choice("score", "score", tablesOf("scores", "facts").map(byScore)).flat(9).filter(Boolean));
  for (const given of tablesOf("published")) section.append(el("h3", {}, given.title), resultTable(given), el("p", { class: "note" }, given.note));
  const apart = tablesOf("categories");
  if (apart.length) section.append(...choice("category", "by category", apart).flat(9).filter(Boolean));
  const compared = tablesOf("comparisons").map(byScore);
  if (!compared.length) return;
  section.append(el("details", {}, el("summary", {}, `The tests: ${plural(results.comparisons.length, "comparison")} behind the bold numbers${results.reference ? ` and against ${results.reference}` : ""}`),
    choice("tests", "score", compared)));
}

function drawLost() {
  const section = $("lost");
  const tables = tablesOf("lost");
  if (!tables.length) { section.remove(); return; }
  section.append(el("p", { class: "note" }, "Each bar is all questions of a row: what was answered right, and the first place where the others were lost."),
    el("ul", { class: "legend" }, Object.entries(data.fates).map(([fate, name]) => el("li", {}, el("i", { class: `swatch ${fate}` }), name))),
    ...choice("lost-column", "of", tables, (given) => {
      const cells = results.cells.filter((cell) => columnName(cell) === given.key && cell.lost && cell.lost.counted);
      return [el("div", { class: "bars" }, cells.map(lossBar)), el("p", { class: "note" }, given.note),
        el("details", {}, el("summary", {}, "as numbers"), resultTable(given))];
    }).flat(9).filter(Boolean));
}

function lossBar(cell) {
  const parts = Object.entries(data.fates).map(([fate, name]) => ({ fate, name, count: cell.lost[fate] })).filter(({ count }) => count);
  const said = parts.map(({ name, count }) => `${name} ${percent(count / cell.lost.counted)}%`).join(", ");
  return el("div", { class: "bar" }, el("span", {}, cell.row),
    el("span", { class: "stack", role: "img", "aria-label": said }, parts.map(({ fate, name, count }) => {
      const share = count / cell.lost.counted;
      return el("b", { class: fate, style: `width:${100 * share}%`, title: `${name}: ${plural(count, "question")}, ${percent(share)}%` }, share >= 0.06 ? percent(share, 0) : "");
    })),
    cell.traces_missing ? el("span", { class: "warning" }, `${plural(cell.traces_missing, "trace")} not found`) : null);
}

function drawCosts() {
  const named = (given) => ({ ...given, label: given.key });
  const rates = new Map(tablesOf("rates").map((given) => [given.key, given]));
  $("costs").append(...choice("cost-column", "of", tablesOf("costs").map(named), (given) => [
    resultTable(given), given.note ? el("p", { class: "note" }, given.note) : null, rates.has(given.key) ? resultTable(rates.get(given.key)) : null,
  ]).flat(9).filter(Boolean));
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").setAttribute("aria-pressed", String(dark));
}

function drawFrame() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches);
  dark.addEventListener("change", () => setTheme(dark.matches));
  $("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
}

function drawNavigation() {
  for (const section of document.querySelectorAll("main > section")) {
    $("sections").append(el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent));
  }
}

drawFrame();
drawScores();
drawLost();
drawCosts();
