// Two evaluations on the same tasks.
/** Exact two-sided sign test: twice the smaller tail of a fair binomial, at most 1. */
function signTest(wins, losses) {
  const n = wins + losses;
  let term = -n * Math.LN2, sum = 0;
  for (let k = 0; k <= Math.min(wins, losses); k += 1) {
    sum += Math.exp(term);
    term += Math.log(n - k) - Math.log(k + 1);
  }
  return n === 0 ? 1 : Math.min(1, 2 * sum);
}

function drawCompare() {
  const section = $("compare");
  const comparable = (a, b) => a !== b && results.evaluations[a].tasks_sha256 === results.evaluations[b].tasks_sha256;
  const numbers = results.evaluations.map((_, index) => index).filter((a) => results.evaluations.some((_, b) => comparable(a, b)));
  if (numbers.length < 2) { section.remove(); return; }
  const first = el("select", { id: "first" }), second = el("select", { id: "second" });
  const known = Object.keys(data.labels).filter((name) => numbers.some((index) => data.scores[index][name]));
  const metric = el("select", { id: "metric" }, known.map((name) => el("option", { value: name }, data.labels[name])));
  const outcome = el("div", { "aria-live": "polite", id: "outcome" });
  for (const index of numbers) first.append(el("option", { value: index }, evaluationName(index)));
  const offer = () => {
    const before = second.value;
    second.replaceChildren(...numbers.filter((index) => comparable(Number(first.value), index)).map((index) => el("option", { value: index }, evaluationName(index))));
    if ([...second.options].some((option) => option.value === before)) second.value = before;
  };
  const show = () => outcome.replaceChildren(...comparison(Number(first.value), Number(second.value), metric.value));
  first.addEventListener("change", () => { offer(); show(); });
  second.addEventListener("change", show);
  metric.addEventListener("change", show);
  offer();
  section.append(el("div", { class: "controls" }, el("label", {}, "A ", first), el("label", {}, "B ", second), el("label", {}, "score ", metric)), outcome);
  show();
}

function comparison(a, b, metric) {
  const scoresOf = (index) => new Map(data.scores[index].tasks.map((task, place) => [task, data.scores[index][metric]?.[place] ?? null]).filter(([, score]) => score !== null));
  const [one, two] = [scoresOf(a), scoresOf(b)];
  const changes = [...one.keys()].filter((task) => two.has(task)).map((task) => ({ task, change: two.get(task) - one.get(task) }));
  const better = changes.filter((item) => item.change > 1e-6).sort((x, y) => y.change - x.change);
  const worse = changes.filter((item) => item.change < -1e-6).sort((x, y) => x.change - y.change);
  if (!changes.length) return [el("p", {}, "No task has a score in both.")];
  const gap = changes.reduce((sum, item) => sum + item.change, 0) / changes.length;
  const p = signTest(better.length, worse.length);
  return [
    el("p", {}, "B is ", el("strong", {}, `better on ${better.length}`), ", ", el("strong", {}, `worse on ${worse.length}`),
      ` and equal on ${changes.length - better.length - worse.length} of ${plural(changes.length, "task")}; mean change per task ${signed(gap)} points; exact sign test p = ${p.toPrecision(2)} (of this pair alone, not corrected for looking at several).`),
    el("div", { class: "columns" }, flipTable(`Better in B (${better.length})`, better, a, b), flipTable(`Worse in B (${worse.length})`, worse, a, b)),
  ];
}

function flipTable(caption, items, a, b) {
  if (!items.length) return null;
  const most = 200;
  const placeOf = (index, task) => data.episodes.findIndex((episode) => episode.evaluation === index && episode.task === task);
  const found = items.map((item) => ({ ...item, places: [placeOf(a, item.task), placeOf(b, item.task)] }));
  // Those that can be opened here come first.
  const ordered = [...found.filter(({ places }) => Math.max(...places) >= 0), ...found.filter(({ places }) => Math.max(...places) < 0)];
  const opener = (place, letter, task) => place < 0 ? null
    : el("button", { type: "button", class: "flip", "aria-label": `Open ${task} in ${letter}`, onclick: () => openEpisode(place) }, letter);
  return el("div", {}, el("div", { class: "flips" }, table(caption, ["task", "change", "episodes"], ordered.slice(0, most).map(({ task, change, places }) =>
    [task, signed(change), Math.max(...places) < 0 ? el("span", { class: "soft" }, "not embedded") : [opener(places[0], "A", task), " ", opener(places[1], "B", task)]]))),
    items.length > most ? el("p", { class: "note" }, `The first ${most}; atommem compare A B --show -1 lists all.`) : null);
}
