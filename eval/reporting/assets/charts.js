// Line charts as inline SVG.
const COLORS = ["#2f7fd0", "#d9622b", "#1f9e73", "#c46aa6", "#d79a12", "#58b4e0", "#8a929c", "#6a5acd"];
const DASHES = ["none", "6 3", "2 3"];

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Round steps of 1, 2 or 5 times a power of ten from 0 to at least `most`. */
function ticks(most) {
  const rough = (most || 1) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => index * step);
}

/**
 * A figure with one line per series: {name, points: [{x, y, low?, high?}]}.
 * With `categories` the x positions are evenly spaced, one for each distinct value; `names` says what to write there.
 * Intervals are bands. A line's `style` is the number of its colour, so that a row looks the same in every chart.
 */
function lineChart(title, xLabel, yLabel, series, { top = null, categories = false, names = null } = {}) {
  const width = 520, height = 270, left = 46, right = 12, bottom = 38, above = 10;
  const all = series.flatMap((line) => line.points);
  const xs = [...new Set(all.map((point) => point.x))].sort((a, b) => a - b);
  const yTicks = top ? [0, 0.2, 0.4, 0.6, 0.8, 1].map((part) => part * top) : ticks(Math.max(...all.map((point) => point.high ?? point.y), 1e-9));
  const yMost = yTicks[yTicks.length - 1];
  const [xLeast, xMost] = [xs[0], xs[xs.length - 1]];
  const place = (x) => categories ? (xs.length > 1 ? xs.indexOf(x) / (xs.length - 1) : 0.5) : (xMost > xLeast ? (x - xLeast) / (xMost - xLeast) : 0.5);
  const px = (x) => left + place(x) * (width - left - right);
  const py = (y) => height - bottom - (y / yMost) * (height - bottom - above);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${yLabel} by ${xLabel}` });
  for (const tick of yTicks) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: py(tick), y2: py(tick) }),
      svg("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }, String(Number(tick.toPrecision(3)))));
  }
  const marks = categories ? xs : ticks(xMost).filter((tick) => tick >= xLeast && tick <= xMost);
  for (const tick of marks) drawing.append(svg("text", { x: px(tick), y: height - bottom + 16, "text-anchor": "middle" }, names ? names[tick] : tick.toLocaleString("en")));
  drawing.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel),
    svg("text", { x: 12, y: (height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - bottom) / 2})` }, yLabel));
  const color = (line, index) => COLORS[(line.style ?? index) % COLORS.length];
  const dash = (line, index) => DASHES[Math.floor((line.style ?? index) / COLORS.length) % DASHES.length];
  const groups = series.map((line, index) => {
    const group = svg("g", { class: "line" });
    const banded = line.points.filter((point) => point.low !== undefined);
    if (banded.length > 1) group.append(svg("polygon", { class: "band", fill: color(line, index), points: [...banded.map((point) => `${px(point.x)},${py(point.high)}`), ...banded.reverse().map((point) => `${px(point.x)},${py(point.low)}`)].join(" ") }));
    group.append(svg("polyline", { points: line.points.map((point) => `${px(point.x)},${py(point.y)}`).join(" "), fill: "none", stroke: color(line, index), "stroke-width": 2, "stroke-dasharray": dash(line, index) }));
    for (const point of line.points) {
      const place = point.label ?? point.x;
      const interval = point.low === undefined ? "" : ` [${Number(point.low.toPrecision(3))}, ${Number(point.high.toPrecision(3))}]`;
      group.append(svg("circle", { cx: px(point.x), cy: py(point.y), r: line.points.length > 40 ? 2 : 3.5, fill: color(line, index) },
        svg("title", {}, `${line.name}: ${Number(point.y.toPrecision(4))}${interval} at ${place}${point.note ? ` (${point.note})` : ""}`)));
    }
    return group;
  });
  drawing.append(...groups);
  const light = (chosen) => groups.forEach((group, index) => group.classList.toggle("faded", chosen !== null && index !== chosen));
  return el("figure", {}, el("figcaption", {}, title), drawing,
    el("ul", { class: "legend" }, series.map((line, index) => el("li", { onmouseenter: () => light(index), onmouseleave: () => light(null) },
      svg("svg", { class: "key", viewBox: "0 0 22 6", "aria-hidden": "true" }, svg("line", { x1: 0, x2: 22, y1: 3, y2: 3, stroke: color(line, index), "stroke-width": 3, "stroke-dasharray": dash(line, index) })), line.name))));
}

/** Charts of which there is one for each column: the first is shown, the others can be chosen. */
/** What the updates count: memory's actions, then those of the environment. */
function actionNames(updates) {
  const memory = ["create", "read", "update", "delete", "scratchpad"];
  const found = new Set(updates.flatMap((entry) => Object.keys(entry)).filter((key) => key.startsWith("actions/")).map((key) => key.slice("actions/".length)));
  return [...memory, ...[...found].filter((name) => !memory.includes(name)).sort()];
}

function chartByColumn(area, id, charts) {
  const found = charts.filter(({ chart }) => chart);
  if (!found.length) return;
  const holder = el("div", { class: "chart" });
  const put = (place) => { (holder.querySelector("figure") ?? holder.appendChild(el("figure"))).replaceWith(found[place].chart); };
  if (found.length > 1) holder.append(el("label", { class: "soft" }, "of ", el("select", { id, onchange: (event) => put(Number(event.target.value)) },
    found.map(({ name }, place) => el("option", { value: place }, name)))));
  put(0);
  area.append(holder);
}

function drawCharts() {
  const area = document.querySelector("#charts .charts");
  const scored = (score) => ({ y: 100 * score.mean, low: 100 * score.low, high: 100 * score.high });
  const main = (cell) => cell.metrics[cell.metric];
  for (const dataset of new Set(results.cells.map((cell) => cell.dataset))) {
    const cells = results.cells.filter((cell) => cell.dataset === dataset && cell.documents !== null && main(cell));
    if (new Set(cells.map((cell) => cell.documents)).size < 2) continue;
    const lines = rows.map((row, style) => ({
      name: row, style,
      points: cells.filter((cell) => cell.row === row).sort((a, b) => a.documents - b.documents).map((cell) => ({ x: cell.documents, ...scored(main(cell)) })),
    })).filter((line) => line.points.length);
    const name = data.labels[cells[0].metric];
    area.append(lineChart(`${name} against documents: ${dataset}`, "documents in the stream", `${name}, percent`, lines, { top: 100, categories: true }));
  }
  for (const chart of data.settings) {
    const lines = chart.lines.map(({ name, scores }) => ({ name, points: scores.map((score, x) => score && { x, ...scored(score), label: chart.values[x] }).filter(Boolean) }));
    area.append(lineChart(`${chart.score} against ${chart.parameter}${columns.length > 1 ? `: ${columnName(chart)}` : ""}`, chart.parameter, `${chart.score}, percent`, lines,
      { top: 100, categories: true, names: chart.values.map((value) => value.toLocaleString("en")) }));
  }
  const updates = data.training.filter((entry) => typeof entry.reward === "number");
  if (updates.length) {
    const over = (key, name) => ({ name, points: updates.filter((entry) => typeof entry[key] === "number").map((entry) => ({ x: entry.step, y: entry[key] })) });
    const actions = actionNames(updates).map((name) => over(`actions/${name}`, name)).filter((line) => line.points.some((point) => point.y > 0));
    if (actions.length) area.append(lineChart("Actions over training", "update of the policy", "actions per step", actions));
    const main = data.training.some((entry) => typeof entry.eval_em === "number") ? "em" : "reward";
    const held = data.training.filter((entry) => typeof entry[`eval_${main}`] === "number").map((entry) => ({ x: entry.step, y: entry[`eval_${main}`], low: entry[`eval_${main}_low`] ?? entry[`eval_${main}`], high: entry[`eval_${main}_high`] ?? entry[`eval_${main}`] }));
    area.append(lineChart("Reward over training", "update of the policy", "score", [over("reward", "mean reward"), ...(held.length ? [{ name: `held-out ${data.labels[main]}`, points: held }] : [])], { top: 1 }));
  }
  const several = columns.length > 1;
  chartByColumn(area, "store-column", columns.map((column) => {
    const lines = rows.map((row, style) => ({ row, style, cell: cellAt(row, column) })).filter(({ cell }) => cell && cell.store_size_by_step && cell.store_size_by_step.some((size) => size > 0))
      .map(({ row, style, cell }) => ({ name: row, style, points: cell.store_size_by_step.map((size, step) => ({ x: step, y: size, note: plural(cell.episodes_by_step[step], "episode") })) }));
    return { name: column, chart: lines.length ? lineChart(`Store size over steps${several ? `: ${column}` : ""}`, "step", "entries (mean)", lines) : null };
  }));
  chartByColumn(area, "precision-column", columns.map((column) => {
    const precise = results.cells.filter((cell) => columnName(cell) === column && typeof cell.retrieval_precision === "number");
    const chart = el("figure", {}, el("figcaption", {}, `Retrieval precision when answering${several ? `: ${column}` : ""}`), el("div", { class: "bars" }, precise.map((cell) =>
      el("div", { class: "bar" }, el("span", {}, cell.row), el("span", { class: "stack" }, el("b", { class: "plain", style: `width:${100 * cell.retrieval_precision}%` })), el("span", {}, `${percent(cell.retrieval_precision)}%`)))),
      el("p", { class: "note" }, "Of the entries shown when a question was answered, those that hold the words of a gold answer."));
    return { name: column, chart: precise.length ? chart : null };
  }));
  if (!area.childElementCount) $("charts").remove();
}

drawCharts();
