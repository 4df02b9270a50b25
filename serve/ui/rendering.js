// Elements of what the log says. Whatever anybody wrote becomes a text node, and nothing else.
export const $ = (selector, of = document) => of.querySelector(selector);

export function el(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}
export const button = (label, onclick, className = "") => el("button", { type: "button", onclick, className }, label);

// A button that wants to be pressed twice.
export function twice(label, sure, work) {
  const node = button(label, () => { if (node.textContent === sure) work(); else node.textContent = sure; }, "danger");
  node.onblur = () => { node.textContent = label; };
  return node;
}

// What its owner says of an answer: `send` gets how good it was, the right one, and whether it may be trained on.
export function feedback(send) {
  const right = el("input", { placeholder: "The right answer, if it is known", ariaLabel: "The right answer", maxLength: 4000 }), consent = el("input", { type: "checkbox" });
  const told = el("span", { className: "soft", ariaLive: "polite" });
  const rate = (label, reward) => button(label, async () => { if (await send({ reward, answer: right.value.trim(), consent: consent.checked })) told.textContent = `Noted: ${label.toLowerCase()}${consent.checked ? ", may be trained on" : ""}`; });
  return el("details", { className: "feedback" }, el("summary", {}, "Feedback"), el("div", { className: "tools" }, right, el("label", {}, consent, " may be trained on"), rate("Right", 1), rate("Wrong", 0), told));
}

export const box = (text) => text ? el("pre", { tabIndex: 0 }, text) : el("p", { className: "empty" }, "empty");
export const time = (seconds) => new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
const short = (id) => id.replace(/(msg_[0-9a-f]{6})[0-9a-f]+/g, "$1…");
const DONE = { create: "created", update: "updated", delete: "deleted", scratchpad: "scratchpad", read: "query", retrieve: "shown next", outcome: "noted how the writers ended", observe: "noted how a question ended" };
const IDLE = { rejected: "rejected by a rule", merged: "merged into another entry", unknown_handle: "no effect: this handle was not shown, or its entry is gone", disabled: "no effect: switched off" };

export const source = (found) => found?.piece ? `from ${short(found.piece)}` : "";
// The source's name: chunks of a text, or parts of a page, are numbered behind it.
export const sourceName = (found) => found?.piece?.replace(/, (?:chunk|part) \d+(\/\d+)?$/, "");

// What an operation did, in a line.
export function said(operation) {
  const of = operation.entry_id === undefined ? "" : ` entry ${operation.entry_id}`;
  const outcome = operation.outcome ?? "applied", scores = operation.scores ?? [];
  const what = operation.kind === "retrieve" ? `: ${scores.length ? `entries ${scores.map(([id]) => id).join(", ")}` : "nothing"}` : of;
  const actor = ["policy", "memory", undefined].includes(operation.actor) ? "" : ` by ${operation.actor}`;
  const reason = [operation.reason, outcome === "applied" ? "" : IDLE[outcome] ?? outcome].filter(Boolean).join("; ");
  return `step ${operation.step}: ${outcome === "applied" ? DONE[operation.kind] ?? operation.kind : operation.kind}${what}${actor}${reason && ` (${reason})`}`;
}

// Words deleted and inserted: the longest common sequence of words; of long texts only where they begin and end alike.
export function changed(before, after) {
  const one = before ? before.split(" ") : [], two = after ? after.split(" ") : [];
  let start = 0, end = 0;
  while (start < Math.min(one.length, two.length) && one[start] === two[start]) start += 1;
  while (end < Math.min(one.length, two.length) - start && one.at(-1 - end) === two.at(-1 - end)) end += 1;
  const a = one.slice(start, one.length - end), b = two.slice(start, two.length - end), small = a.length * b.length < 250000;
  const length = small ? Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1)) : null;
  for (let i = a.length - 1; small && i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  }
  const parts = [], say = (tag, word) => { if (parts.at(-1)?.tag === tag) parts.at(-1).words.push(word); else parts.push({ tag, words: [word] }); };
  one.slice(0, start).forEach((word) => say("span", word));
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    if (small && i < a.length && j < b.length && a[i] === b[j]) { say("span", a[i]); i += 1; j += 1; }
    else if (i < a.length && (j === b.length || !small || length[i + 1][j] >= length[i][j + 1])) { say("del", a[i]); i += 1; }
    else { say("ins", b[j]); j += 1; }
  }
  one.slice(one.length - end).forEach((word) => say("span", word));
  return el("pre", { tabIndex: 0 }, parts.flatMap(({ tag, words }, place) => [place ? " " : "", el(tag, {}, words.join(" "))]));
}

// Everything that ever happened to an entry; `go(seq)` shows the memory after it.
export function history(id, operations, go) {
  const lines = [], shown = [];
  operations.forEach((operation, seq) => {
    if (operation.kind === "retrieve") shown.push(...(operation.scores ?? []).filter(([entry]) => entry === id).map(([, score]) => `${operation.step + 1} (${score.toFixed(3)})`));
    else if (operation.entry_id === id) lines.push(el("li", {}, button(said(operation), () => go(seq + 1), "link"), el("div", { className: "soft" }, source(operation.source)), operation.before || operation.after ? changed(operation.before, operation.after) : null));
  });
  return el("div", {}, el("ol", { className: "history" }, lines), el("p", { className: "note" }, shown.length ? `shown at steps ${shown.slice(-40).join(", ")}` : "never shown yet"));
}

function* strings(piece) {
  for (const value of Object.values(piece.values)) {
    if (typeof value === "string") yield [piece.name, value];
    else if (Array.isArray(value)) for (const inner of value) yield* strings(inner);
    else if (value !== null && typeof value === "object") yield* strings(value);
  }
}

// What the policy wrote, its actions marked. Places count characters, not UTF-16 units.
function written(step) {
  const text = Array.from(step.text), parts = [];
  let at = 0;
  const spans = [...step.actions.map((item) => ({ ...item, className: "action", title: item.kind })), ...step.problems.map((item) => ({ ...item, className: "problem", title: item.reason }))];
  for (const { start, end, className, title } of spans.sort((one, two) => one.start - two.start || two.end - one.end)) {
    if (start < at) continue;
    parts.push(text.slice(at, start).join(""), el("mark", { className, title }, text.slice(start, end).join("")));
    at = end;
  }
  return el("pre", { tabIndex: 0 }, parts.filter(Boolean), text.slice(at).join(""));
}

// A step as the report shows it: what stood in front of the policy, what it wrote, what came of it.
export function stepShown(step, done, open) {
  const { observation, view } = step;
  const pieces = [...observation.stream, ...observation.task].flatMap((piece) => [...strings(piece)]);
  const retrieved = view.retrieved.flatMap((item) => [el("div", { className: "soft" }, `Memory ${item.handle} · `, button(`entry ${item.entry_id}`, () => open(item.entry_id), "link"), ` · score ${item.score.toFixed(3)}`), box(item.text)]);
  const heading = (text) => el("h5", {}, text);
  const operations = done.map((item) => el("div", {}, el("div", { className: "soft" }, said(item), " ", source(item.source)), item.kind !== "retrieve" && (item.before || item.after) ? changed(item.before, item.after) : null));
  return [
    el("p", { className: "note" }, `Step ${step.index}: ${[observation.phase, observation.label, observation.origin && short(observation.origin)].filter(Boolean).join(", ")}; ${step.prompt_tokens} tokens shown, ${step.token_ids?.length ?? "?"} written, ended by ${step.finish_reason}; ${step.store_size} in the store afterwards · checkpoint ${step.checkpoint}`),
    el("div", { className: "columns" },
      el("div", {}, el("h4", {}, "Shown to the policy"), pieces.flatMap(([name, text]) => [heading(name), box(text)]), heading("Scratchpad"), box(view.scratchpad), heading("Query"), box(view.query), heading(`Retrieved (${view.retrieved.length})`), retrieved),
      el("div", {}, el("h4", {}, "It wrote"), written(step), step.problems.map((item) => el("p", { className: "warning" }, `malformed: ${item.reason.replaceAll("_", " ")} <${item.tag}>`)), heading("What came of it"), operations.length ? operations : el("p", { className: "empty" }, "no operation"))),
  ];
}
