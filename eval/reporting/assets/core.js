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

function scoreCell(cell, metric) {
  if (!cell) return "–";
  const score = cell[metric];
  const bold = data.best[metric].some(([row, dataset, documents]) => row === cell.row && dataset === cell.dataset && documents === cell.documents);
  const parts = [];
  if (score === null) parts.push("no score");
  else {
    parts.push(bold ? el("strong", {}, percent(score.mean)) : percent(score.mean),
      el("span", { class: "interval" }, ` [${percent(score.low)}, ${percent(score.high)}]`));
    const seeds = score.between_seeds;
    if (seeds.sd !== null) parts.push(el("span", { class: "interval" }, ` sd ${percent(seeds.sd)} over ${seeds.seeds} seeds`));
  }
  if (cell.failed) parts.push(el("strong", { class: "failures" }, `${cell.failed} failed`));
  return parts;
}

function drawScores() {
  const section = $("scores");
  section.append(el("div", { class: "tables" }, ["em", "f1"].map((metric) =>
    table(`${metric === "em" ? "Exact match (EM)" : "Token F1"}, percent [95% interval]`, ["", ...columns],
      rows.map((row) => [row, ...columns.map((column) => scoreCell(cellAt(row, column), metric))])))));
  section.append(el("p", { class: "note" },
    `Intervals are Wilson's at the effective sample size, with tasks as clusters. A number is bold if it beats the runner-up of its column in the exact paired sign test over tasks, Holm-corrected over all comparisons below at ${results.alpha}. Failed episodes ended by an outage: they are in no score, their number stands beside it.`));
  if (!results.comparisons.length) return;
  section.append(el("details", {}, el("summary", {}, `${plural(results.comparisons.length, "comparison")} behind the bold numbers${results.reference ? ` and against ${results.reference}` : ""}`),
    table("Differences on the same tasks", ["", "on", "score", "points [95%, paired bootstrap]", "better", "worse", "equal", "p", "p (Holm)"],
      results.comparisons.map((item) => [`${item.second} − ${item.first}`, columnName(item), item.metric.toUpperCase(),
        item.difference === null ? "–" : `${signed(item.difference)} [${signed(item.low)}, ${signed(item.high)}]`,
        item.wins, item.losses, item.ties, item.p_value.toPrecision(2),
        item.significant ? el("strong", {}, item.p_holm.toPrecision(2)) : item.p_holm.toPrecision(2)].map((cell) => typeof cell === "number" ? String(cell) : cell)))));
}

const STAGES = [
  ["located", "questions", "Questions whose answer a text can hold (not yes or no)"],
  ["entered", "entered memory", "A gold answer was written to the store or the scratchpad"],
  ["kept", "there at the end", "Memory still held it when the question was answered"],
  ["shown", "shown", "A retrieved entry or the scratchpad held it in the prompt of the answer"],
  ["answered", "answered right", "Exact match"],
];

function drawLost() {
  const section = $("lost");
  const cells = results.cells.filter((cell) => cell.funnel && cell.funnel.located);
  if (!cells.length) { section.remove(); return; }
  section.append(el("p", { class: "note" }, "Each bar counts the questions that passed all stages so far. A text holds an answer if the answer's normalised words follow one another in it."));
  for (const column of columns) {
    const members = cells.filter((cell) => columnName(cell) === column);
    if (!members.length) continue;
    const drawn = el("div", { class: "funnels" }, members.map(funnel));
    section.append(columns.length > 1 ? el("details", { open: column === columns[0] }, el("summary", {}, column), drawn) : drawn);
  }
}

function funnel(cell) {
  const total = cell.funnel.located;
  return el("div", { class: "funnel", role: "group", "aria-label": cell.row }, el("h3", {}, cell.row),
    STAGES.map(([key, label, title]) => el("div", { title }, el("span", {}, label),
      el("span", {}, el("b", { style: `width:${100 * cell.funnel[key] / total}%` })),
      el("span", {}, `${cell.funnel[key]} · ${percent(cell.funnel[key] / total, 0)}%`))),
    cell.funnel.right_otherwise ? el("p", { class: "note" }, `${cell.funnel.right_otherwise} more were right though no memory in the prompt held the answer.`) : null,
    cell.funnel.questions > total ? el("p", { class: "note" }, `${cell.funnel.questions - total} questions cannot be located and are not in the bars.`) : null,
    cell.traces_missing ? el("p", { class: "warning" }, `${plural(cell.traces_missing, "trace")} not found: not in the bars.`) : null);
}

const MEANS = [
  ["seconds", "seconds", 1], ["prompt tokens", "tokens/prompt", 0], ["output tokens", "tokens/completion", 0], ["model calls", "steps", 1],
  ["retrievals", "retrievals", 1], ["entries at the end", "store_size", 1],
];
const RATES = [
  ["create", "actions/create"], ["read", "actions/read"], ["update", "actions/update"], ["delete", "actions/delete"],
  ["scratchpad", "actions/scratchpad"], ["malformed", "malformed"], ["unknown handle", "wasted/unknown_handle"], ["rejected", "wasted/rejected"],
];

function drawCosts() {
  const named = (cell) => columns.length > 1 ? `${cell.row}, ${columnName(cell)}` : cell.row;
  const number = (value, digits) => value === undefined || value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  $("costs").append(
    table("Mean per task", ["", ...MEANS.map(([label]) => label), "retrieval precision"], results.cells.map((cell) =>
      [named(cell), ...MEANS.map(([, key, digits]) => number(cell.means[key], digits)), number(cell.retrieval_precision, 3)])),
    table("Mean per step", ["", ...RATES.map(([label]) => label)], results.cells.map((cell) =>
      [named(cell), ...RATES.map(([, key]) => number(cell.means[key], 3))])),
    el("p", { class: "note" }, "Retrieval precision: of the entries shown when a question was answered, the fraction that hold a gold answer. Seconds are an episode's own while others run beside it."));
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
