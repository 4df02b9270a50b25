// Two evaluations on the same tasks.
/** Two-sided sign-flip test of a mean difference, by random signs; as sign_flip_test of envs/scoring/statistics.py. */
function signFlipTest(items) {
  const sums = (keyOf) => { const found = new Map(); for (const item of items) found.set(keyOf(item), (found.get(keyOf(item)) || 0) + item.gap); return [...found.values()]; };
  const squares = (values) => values.reduce((sum, value) => sum + value * value, 0);
  const groups = sums((item) => item.group), questions = sums((item) => item.question), both = sums((item) => `${item.group} ${item.question}`);
  const ways = both.length === questions.length ? [groups] : both.length === groups.length ? [questions] : [groups, questions];
  const all = ways.flat().filter((value) => Math.abs(value) > 1e-6);
  if (!all.length) return 1;
  const most = Math.max(...ways.map(squares)), crossed = squares(groups) + squares(questions) - squares(both);
  const scale = Math.sqrt((ways.length > 1 ? Math.max(most, crossed) : most) / squares(all));
  const observed = Math.abs(items.reduce((sum, { gap }) => sum + gap, 0)), flips = 9999;
  let state = 1, far = 0.5;
  for (let flip = 0; flip < flips; flip += 1) {
    let sum = 0;
    for (const value of all) {
      state ^= state << 13; state ^= state >>> 17; state ^= state << 5;  // xorshift
      sum += state < 0 ? -value : value;
    }
    const gap = scale * Math.abs(sum) - observed;
    far += gap > 1e-6 ? 1 : gap >= -1e-6 ? 0.5 : 0;
  }
  return far / (flips + 1);
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
  const scoresOf = (index) => new Map(data.scores[index].places.map((place, at) => [`${place[1]} ${place[0]}`, { task: place[0], group: place[2], question: place[3], score: data.scores[index][metric]?.[at] ?? null }]).filter(([, { score }]) => score !== null));
  const [one, two] = [scoresOf(a), scoresOf(b)];
  const items = [...one].filter(([key]) => two.has(key)).map(([key, item]) => ({ ...item, gap: two.get(key).score - item.score }));
  if (!items.length) return [el("p", {}, "No question has a score in both.")];
  const gaps = new Map();
  for (const { task, gap } of items) gaps.set(task, [...(gaps.get(task) || []), gap]);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const changes = [...gaps].map(([task, found]) => ({ task, change: mean(found) }));
  const better = changes.filter((item) => item.change > 1e-6).sort((x, y) => y.change - x.change);
  const worse = changes.filter((item) => item.change < -1e-6).sort((x, y) => x.change - y.change);
  return [
    el("p", {}, "B is ", el("strong", {}, `better on ${better.length}`), ", ", el("strong", {}, `worse on ${worse.length}`),
      ` and equal on ${changes.length - better.length - worse.length} of ${plural(changes.length, "task")}; mean difference over ${plural(items.length, "question")} ${signed(mean(items.map(({ gap }) => gap)))} points; sign-flip test p = ${signFlipTest(items).toPrecision(2)} (of this pair alone, not corrected for looking at several).`),
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
