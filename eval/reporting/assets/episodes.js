// The episode browser: what was shown, what the model wrote, what changed in memory, where the answer came from.
const text = (number) => data.texts[number];
const STATUSES = ["all", "wrong", "failed", "malformed", "right"];
const PAGE = 100;
const state = { evaluation: -1, status: "all", search: "", shown: PAGE, open: -1, step: 0 };

const matches = (episode, status) => status === "all" || (status === "malformed" ? episode.malformed : episode.status === status);
const wanted = (episode) => (state.evaluation < 0 || episode.evaluation === state.evaluation)
  && (!state.search || `${episode.task} ${episode.questions.map((q) => `${q.text} ${q.answer} ${q.golds.join(" ")}`).join(" ")}`.toLowerCase().includes(state.search));

function drawEpisodes() {
  const section = $("episodes");
  const left = data.total_episodes - data.episodes.length;
  if (left > 0) {
    section.append(el("p", { class: "note", id: "capped" }, `${data.episodes.length.toLocaleString("en")} of ${plural(data.total_episodes, "episode")} are embedded here, of every kind in turn and on the same tasks in each evaluation. The others are in the traces folders: atommem trace FILE. Numbers above cover all.`));
  }
  if (!data.episodes.length) { section.append(el("p", {}, "No trace was found to embed.")); return; }
  const select = el("select", { id: "evaluation", onchange: (event) => { state.evaluation = Number(event.target.value); refresh(); } },
    el("option", { value: -1 }, "all evaluations"), results.evaluations.map((_, index) => el("option", { value: index }, evaluationName(index))));
  const filters = el("fieldset", { id: "filters" }, el("legend", {}, "show"), STATUSES.map((status) =>
    el("button", { type: "button", "data-status": status, "aria-pressed": String(status === "all"), onclick: () => { state.status = status; refresh(); } }, status)));
  const search = el("input", { type: "search", id: "search", placeholder: "task, question or answer", "aria-label": "Search episodes", oninput: (event) => { state.search = event.target.value.toLowerCase(); refresh(); } });
  section.append(el("div", { class: "controls" }, el("label", {}, "of ", select), filters, search),
    el("p", { class: "note", id: "count", "aria-live": "polite" }),
    el("div", { class: "browser" }, el("ul", { class: "list", id: "list" }), el("article", { id: "detail", tabindex: "-1" })));
  $("detail").addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") goTo(state.step + 1);
    else if (event.key === "ArrowLeft") goTo(state.step - 1);
    else return;
    event.preventDefault();
  });
  refresh();
}

function refresh() {
  state.shown = PAGE;
  for (const button of document.querySelectorAll("#filters button")) {
    const status = button.dataset.status;
    button.setAttribute("aria-pressed", String(status === state.status));
    button.textContent = `${status} ${data.episodes.filter((episode) => wanted(episode) && matches(episode, status)).length}`;
  }
  drawList();
}

function drawList() {
  const places = data.episodes.map((_, place) => place).filter((place) => wanted(data.episodes[place]) && matches(data.episodes[place], state.status));
  $("count").textContent = plural(places.length, "episode");
  const items = places.slice(0, state.shown).map((place) => {
    const episode = data.episodes[place];
    return el("li", {}, el("button", { type: "button", "data-place": place, "aria-current": String(place === state.open), onclick: () => openEpisode(place) },
      badge(episode.status), episode.malformed ? el("span", { class: "badge malformed", title: "malformed actions" }, "!") : null,
      el("span", {}, episode.task, state.evaluation < 0 ? el("span", { class: "soft" }, ` ${evaluationName(episode.evaluation)}`) : null)));
  });
  if (places.length > state.shown) items.push(el("li", {}, el("button", { type: "button", class: "more", onclick: () => { state.shown += PAGE; drawList(); } }, `${places.length - state.shown} more`)));
  $("list").replaceChildren(...items);
  if (!places.includes(state.open) && places.length) show(places[0]);
  else if (!places.length) { state.open = -1; $("detail").replaceChildren(el("p", { class: "empty" }, "No episode of this kind.")); }
}

const badge = (status) => el("span", { class: `badge ${status}` }, status);

/** Show an episode without moving the reader; `openEpisode` also brings it into view. */
function show(place) {
  state.open = place;
  const episode = data.episodes[place];
  const answered = episode.questions.map((question) => question.step).find((step) => step !== null && step !== undefined);
  state.step = answered ?? Math.max(0, episode.steps.length - 1);
  for (const button of document.querySelectorAll("#list button[data-place]")) button.setAttribute("aria-current", String(Number(button.dataset.place) === place));
  drawDetail();
}

function openEpisode(place) {
  show(place);
  $("detail").scrollIntoView({ block: "nearest" });
  $("detail").focus({ preventScroll: true });
}

function goTo(step) {
  const steps = data.episodes[state.open].steps;
  state.step = Math.min(Math.max(step, 0), steps.length - 1);
  drawDetail();
}

function drawDetail() {
  const episode = data.episodes[state.open];
  const parts = [
    el("h3", {}, episode.task, episode.sample ? `, sample ${episode.sample} ` : " ", badge(episode.status), episode.malformed ? [" ", el("span", { class: "badge malformed" }, "malformed")] : null),
    el("p", { class: "note" }, `${evaluationName(episode.evaluation)} · ended: ${episode.stop.replaceAll("_", " ")}${episode.seconds === null ? "" : ` · ${episode.seconds} s`} · traces/${episode.trace}`),
    episode.error ? el("p", { class: "warning" }, `Failed: ${episode.error}`) : null,
    episode.questions.map((question) => answerLine(question)),
  ];
  if (episode.steps.length) {
    parts.push(el("div", { class: "steps", role: "group", "aria-label": "Steps" },
      el("button", { type: "button", id: "previous", "aria-label": "Previous step", disabled: state.step === 0, onclick: () => goTo(state.step - 1) }, "←"),
      episode.steps.map((step, index) => el("button", {
        type: "button", "data-step": index, "aria-current": String(index === state.step), title: `${step.phase}; ${plural(step.operations.filter((operation) => operation.actor === "policy").length, "memory action")}`,
        class: step.problems.length ? "broken" : step.operations.some(changes) ? "changed" : "", onclick: () => goTo(index),
      }, String(index))),
      el("button", { type: "button", id: "next", "aria-label": "Next step", disabled: state.step === episode.steps.length - 1, onclick: () => goTo(state.step + 1) }, "→")),
      stepView(episode, state.step));
  } else parts.push(el("p", { class: "empty" }, "No step was taken."));
  const focused = document.activeElement && $("detail").contains(document.activeElement) ? document.activeElement.id || document.activeElement.dataset.step : null;
  $("detail").replaceChildren(...parts.flat(9).filter(Boolean));
  if (focused) ($(focused) && !$(focused).disabled ? $(focused) : $("detail").querySelector(`[data-step="${state.step}"]`) ?? $("detail")).focus({ preventScroll: true });
}

/** Retrievals stand in the log too: what they show stands on the left of the next step. */
const isChange = (operation) => operation.kind !== "retrieve";
const changes = (operation) => operation.outcome === "applied" && operation.kind !== "read" && isChange(operation);

const LOST = {
  misread: "what it takes was in front of the model", not_retrieved: "memory held what it takes, but it was not retrieved",
  forgotten: "memory held what it takes, and lost it", never_entered: "what it takes never entered memory",
};

function answerLine(question) {
  const line = el("div", { class: "answer" }, el("strong", {}, question.text), " ");
  const answer = question.answer === null || question.answer === undefined ? el("span", { class: "empty" }, "no answer") : el("span", { class: question.right === null ? "" : question.right ? "right" : "wrong" }, question.answer);
  const golds = !question.right && question.golds.length ? ` · gold: ${question.golds.join(" | ")}` : "";
  line.append(answer, golds, !question.right && "f1" in question.metrics ? ` · F1 ${percent(question.metrics.f1, 0)}` : "");
  if (question.answer !== null && question.step !== null) {
    const from = question.sources.map((source) => [
      source.kind === "entry" ? `entry ${source.entry_id} (Memory ${source.handle})` : `the ${source.kind}`,
      source.written === null ? "" : [", written at ", el("button", { type: "button", class: "origin", onclick: () => goTo(source.written) }, `step ${source.written}`)],
    ]);
    line.append(el("div", { class: "soft" }, from.length ? ["The answer came from ", from.flatMap((item, index) => index ? ["; ", item] : [item])].flat(9).reduce((node, part) => { node.append(part); return node; }, el("span")) : "No text in front of the model held this answer."));
  }
  if (question.fate && LOST[question.fate]) line.append(el("div", { class: "soft" }, `Where it was lost: ${LOST[question.fate]}.`));
  return line;
}

function stepView(episode, index) {
  const step = episode.steps[index];
  const sources = episode.questions.filter((question) => question.step === index).flatMap((question) => question.sources ?? []);
  const isSource = (kind, entry = null) => sources.some((source) => source.kind === kind && (entry === null || source.entry_id === entry));
  const box = (content, source = false) => content ? el("pre", { class: source ? "box source" : "box", tabindex: "0" }, content) : el("p", { class: "empty" }, "empty");
  return [
    el("p", { class: "note", id: "where" }, `Step ${index} of ${episode.steps.length - 1}: ${step.phase}${step.label ? `, ${step.label}` : ""}; ${plural(step.tokens, "token")} written, ended by ${step.finish}; ${step.size === 1 ? "1 entry" : `${step.size} entries`}${step.capacity === null ? "" : ` of at most ${step.capacity}`} in the store afterwards`),
    el("div", { class: "columns" },
      el("div", {}, el("h3", {}, "Shown to the model"),
        step.prompt === null ? null : [el("h4", {}, "Prompt, chat markup included"), box(text(step.prompt))],
        step.shown.map(([name, number], index) => [index && step.shown[index - 1][0] === name ? null : el("h4", {}, name[0].toUpperCase() + name.slice(1).replaceAll("_", " ")), box(text(number), isSource(name))]),
        step.prompt !== null && !text(step.scratchpad) ? null : [el("h4", {}, "Scratchpad"), box(text(step.scratchpad), isSource("scratchpad"))],
        step.prompt !== null && !step.query ? null : [el("h4", {}, "Query"), box(step.query ?? "")],
        step.prompt !== null && !step.retrieved.length ? null : [el("h4", {}, `Retrieved (${step.retrieved.length})`),
        step.retrieved.length ? step.retrieved.map(([handle, entry, content, score]) => el("div", { class: isSource("entry", entry) ? "source" : "" },
          el("div", { class: "soft" }, `Memory ${handle} · entry ${entry} · score ${score}${isSource("entry", entry) ? " · holds the answer given" : ""}`), box(text(content)))) : el("p", { class: "empty" }, "nothing")]),
      el("div", {}, el("h3", {}, "The model wrote"), el("h4", {}, "Completion"), completion(step),
        step.problems.length ? el("ul", {}, step.problems.map(([reason, tag]) => el("li", { class: "warning" }, `malformed: ${reason.replaceAll("_", " ")} <${tag}>`))) : null,
        el("h4", {}, "Changed in memory"),
        step.operations.some(isChange) ? step.operations.filter(isChange).map(operationView) : el("p", { class: "empty" }, "no memory action"),
        memoryAfter(episode, index))),
  ];
}

/** The completion with its actions marked, and what could not be read as one. */
function completion(step) {
  // The places of actions count characters, not UTF-16 units.
  const written = Array.from(text(step.text));
  if (!written.length) return el("p", { class: "empty" }, "nothing");
  const spans = [...step.actions.map(([kind, start, end]) => ({ start, end, label: kind, name: "action" })), ...step.problems.map(([reason, , start, end]) => ({ start, end, label: reason, name: "problem" }))].sort((a, b) => a.start - b.start || b.end - a.end);
  const parts = [];
  let at = 0;
  for (const span of spans) {
    if (span.start < at || span.end <= span.start) continue;
    parts.push(written.slice(at, span.start).join(""), el("mark", { class: span.name, title: span.label }, written.slice(span.start, span.end).join("")));
    at = span.end;
  }
  return el("pre", { class: "box", tabindex: "0" }, parts, written.slice(at).join(""));
}

const VERBS = { create: "created", update: "updated", delete: "deleted", scratchpad: "scratchpad", read: "query", outcome: "noted how the writers ended" };
const IDLE = { rejected: "rejected by a rule", merged: "merged into this entry", unknown_handle: "no effect: this handle was not shown, or its entry is gone", disabled: "no effect: switched off" };

function operationView(operation) {
  const name = operation.outcome === "applied" ? VERBS[operation.kind] : operation.kind;
  const label = `${name}${operation.entry === null ? "" : ` entry ${operation.entry}`}${operation.handle === null ? "" : ` (Memory ${operation.handle})`}`;
  const before = operation.before === null ? "" : text(operation.before), after = operation.after === null ? "" : text(operation.after);
  return el("div", { class: operation.outcome === "applied" ? "operation" : "operation idle" },
    el("div", { class: "soft" }, label, operation.actor === "policy" ? "" : ` by ${operation.actor}`, operation.reason ? `; ${operation.reason}` : "", operation.outcome === "applied" ? "" : [" · ", el("span", { class: "warning" }, IDLE[operation.outcome])]),
    before || after ? el("pre", { class: "box", tabindex: "0" }, operation.outcome === "applied" ? difference(before, after) : after) : null);
}

/** Words deleted and inserted, by the longest common subsequence; long texts are shown whole. */
function difference(before, after) {
  const one = before.split(/(\s+)/).filter(Boolean), two = after.split(/(\s+)/).filter(Boolean);
  if (one.length * two.length > 4e5) return [el("del", {}, before), " ", el("ins", {}, after)];
  const length = Array.from({ length: one.length + 1 }, () => new Uint16Array(two.length + 1));
  for (let i = one.length - 1; i >= 0; i -= 1) for (let j = two.length - 1; j >= 0; j -= 1) length[i][j] = one[i] === two[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  const parts = [];
  const put = (kind, word) => { if (parts.length && parts[parts.length - 1].kind === kind) parts[parts.length - 1].words.push(word); else parts.push({ kind, words: [word] }); };
  let i = 0, j = 0;
  while (i < one.length || j < two.length) {
    if (i < one.length && j < two.length && one[i] === two[j]) { put("same", one[i]); i += 1; j += 1; }
    else if (i < one.length && (j === two.length || length[i + 1][j] >= length[i][j + 1])) { put("del", one[i]); i += 1; }
    else { put("ins", two[j]); j += 1; }
  }
  return parts.map(({ kind, words }) => kind === "same" ? words.join("") : el(kind, {}, words.join("")));
}

/** The store after a step, from the operations until then. */
function memoryAfter(episode, index) {
  const entries = new Map();
  for (const [number, step] of episode.steps.slice(0, index + 1).entries()) {
    for (const operation of step.operations) {
      if (operation.outcome !== "applied") continue;
      if (operation.kind === "create") entries.set(operation.entry, { content: operation.after, created: number, shown: 0 });
      if (operation.kind === "update" && entries.has(operation.entry)) entries.get(operation.entry).content = operation.after;
      if (operation.kind === "delete") entries.delete(operation.entry);
      if (operation.kind === "retrieve") for (const id of operation.shown) if (entries.has(id)) entries.get(id).shown += 1;
    }
  }
  if (!entries.size) return null;
  return el("details", { open: entries.size <= 8 }, el("summary", {}, `the store after this step: ${entries.size === 1 ? "1 entry" : `${entries.size} entries`}`),
    [...entries].map(([id, { content, created, shown }]) => el("div", {}, el("div", { class: "soft" }, `entry ${id} · of step ${created}${shown ? ` · shown ${shown} times` : ""}`), el("pre", { class: "box" }, text(content)))));
}

drawCompare();
drawEpisodes();
drawNavigation();
