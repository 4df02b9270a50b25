// Line charts as inline SVG.
const COLORS = ["#2f6fd0", "#d9622b", "#2a9d62", "#a04cc0", "#c2931a", "#d0417f", "#3aa3b5", "#7d8590"];

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
 * With `categories` the x positions are evenly spaced, one for each distinct value.
 */
function lineChart(title, xLabel, yLabel, series, { top = null, categories = false } = {}) {
  const width = 520, height = 270, left = 46, right = 12, bottom = 38, above = 10;
  const all = series.flatMap((line) => line.points);
  const xs = [...new Set(all.map((point) => point.x))].sort((a, b) => a - b);
  const yTicks = top === 1 ? [0, 0.2, 0.4, 0.6, 0.8, 1] : ticks(Math.max(...all.map((point) => point.high ?? point.y), 1e-9));
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
  for (const tick of marks) drawing.append(svg("text", { x: px(tick), y: height - bottom + 16, "text-anchor": "middle" }, tick.toLocaleString("en")));
  drawing.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel),
    svg("text", { x: 12, y: (height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - bottom) / 2})` }, yLabel));
  series.forEach((line, index) => {
    const color = COLORS[index % COLORS.length];
    const dash = index >= COLORS.length ? "6 3" : "none";
    drawing.append(svg("polyline", { points: line.points.map((point) => `${px(point.x)},${py(point.y)}`).join(" "), fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": dash }));
    for (const point of line.points) {
      if (point.low !== undefined) drawing.append(svg("line", { x1: px(point.x), x2: px(point.x), y1: py(point.low), y2: py(point.high), stroke: color, "stroke-opacity": 0.5 }));
      const said = `${line.name}: ${Number(point.y.toPrecision(4))} at ${point.x}${point.note ? ` (${point.note})` : ""}`;
      drawing.append(svg("circle", { cx: px(point.x), cy: py(point.y), r: line.points.length > 40 ? 2 : 3, fill: color }, svg("title", {}, said)));
    }
  });
  return el("figure", {}, el("figcaption", {}, title), drawing,
    el("ul", { class: "legend" }, series.map((line, index) => el("li", {}, el("i", { style: `background:${COLORS[index % COLORS.length]}` }), line.name))));
}

function drawCharts() {
  const area = document.querySelector("#charts .charts");
  for (const dataset of new Set(results.cells.map((cell) => cell.dataset))) {
    const cells = results.cells.filter((cell) => cell.dataset === dataset && cell.documents !== null && cell.em !== null);
    if (new Set(cells.map((cell) => cell.documents)).size < 2) continue;
    const lines = rows.map((row) => ({
      name: row,
      points: cells.filter((cell) => cell.row === row).sort((a, b) => a.documents - b.documents)
        .map((cell) => ({ x: cell.documents, y: cell.em.mean, low: cell.em.low, high: cell.em.high })),
    })).filter((line) => line.points.length);
    area.append(lineChart(`EM against documents: ${dataset}`, "documents in the stream", "EM", lines, { top: 1, categories: true }));
  }
  const updates = data.training.filter((entry) => typeof entry.reward === "number");
  if (updates.length) {
    const over = (key, name) => ({ name, points: updates.filter((entry) => typeof entry[key] === "number").map((entry) => ({ x: entry.step, y: entry[key] })) });
    const actions = ["create", "read", "update", "delete", "scratchpad", "answer"].map((name) => over(`actions/${name}`, name)).filter((line) => line.points.some((point) => point.y > 0));
    if (actions.length) area.append(lineChart("Actions over training", "update of the policy", "actions per step", actions));
    const held = data.training.filter((entry) => typeof entry.eval_em === "number").map((entry) => ({ x: entry.step, y: entry.eval_em, low: entry.eval_em_low ?? entry.eval_em, high: entry.eval_em_high ?? entry.eval_em }));
    area.append(lineChart("Reward over training", "update of the policy", "score", [over("reward", "mean reward"), ...(held.length ? [{ name: "held-out EM", points: held }] : [])], { top: 1 }));
  }
  for (const column of columns) {
    const lines = results.cells.filter((cell) => columnName(cell) === column && cell.store_size_by_step && cell.store_size_by_step.some((size) => size > 0))
      .map((cell) => ({ name: cell.row, points: cell.store_size_by_step.map((size, step) => ({ x: step, y: size, note: plural(cell.episodes_by_step[step], "episode") })) }));
    if (lines.length) area.append(lineChart(`Store size over steps${columns.length > 1 ? `: ${column}` : ""}`, "step", "entries (mean)", lines));
  }
  for (const column of columns) {
    const precise = results.cells.filter((cell) => columnName(cell) === column && typeof cell.retrieval_precision === "number");
    if (!precise.length) continue;
    area.append(el("figure", {}, el("figcaption", {}, `Retrieval precision when answering${columns.length > 1 ? `: ${column}` : ""}`), el("div", { class: "funnel" }, precise.map((cell) =>
      el("div", {}, el("span", {}, cell.row), el("span", {}, el("b", { style: `width:${100 * cell.retrieval_precision}%` })), el("span", {}, `${percent(cell.retrieval_precision)}%`))))));
  }
  if (!area.childElementCount) $("charts").remove();
}

drawCharts();
