// The page: which conversation is open, which moment of it is looked at, and what its owner does.
import { file, get, hasKey, post, remove, setKey, stream } from "./api.js";
import { $, box, button, el, feedback, history, said, source, sourceName, stepShown, time, twice } from "./rendering.js";

const NEWEST = 2 ** 31 - 1, MOST = 200;  // entries on the page at once; the search finds the others
let model = null, open = null;  // what is open: id, operations, memory, at (null is now), step, expanded entries

const path = (rest = "") => `conversations/${open.id}${rest}`;
const fresh = (id) => ({ id, operations: [], memory: null, at: null, step: null, expanded: new Set(), items: [] });

function tell(text) { $("#notice").textContent = text; $("#notice").hidden = !text; }

// Do something that may fail: what the server says of it is told, and a missing key is asked for.
async function attempt(work) {
  tell("");
  try { return await work(); } catch (error) {
    if (error.status === 401) askForKey();
    tell(error.status === 401 && !hasKey() ? "" : error.message);
  }
  return null;
}

function askForKey() {
  for (const id of ["#app", "#leave"]) $(id).hidden = true;
  $("#key").hidden = false;
  $("#key input").focus();
}

async function start() {
  model = (await get("models")).data[0];
  $("#key").hidden = true;
  $("#app").hidden = false;
  $("#leave").hidden = !hasKey();
  const blind = model.trained_for === null ? "not trained as a memory" : model.trained_for.blind ? "reads with and without a goal" : "trained to see the questions while it reads: give a goal";
  $("#model").textContent = `${model.id} · checkpoint ${model.checkpoint} · ${blind}`;
  await list();
  await route();
}

// Conversations: newest first.
async function list(after = "") {
  const { data, has_more: more } = await get(`conversations?limit=50&after=${after}`);
  const lines = data.map((item) => el("li", {}, Object.assign(button("", () => { location.hash = item.id; }), { id: `of-${item.id}` })));
  lines.forEach((line, place) => line.firstChild.append(el("span", {}, name(data[place]), el("span", { className: "soft" }, time(data[place].created_at)))));
  if (after) $("#list").append(...lines); else $("#list").replaceChildren(...lines);
  $("#older").hidden = !more;
  $("#older").onclick = () => attempt(() => list(data.at(-1).id));
  mark();
}
const name = (about) => about.metadata?.title || about.metadata?.goal || about.id;
const mark = () => [...$("#list").querySelectorAll("button")].forEach((node) => node.setAttribute("aria-current", node.id === `of-${open?.id}`));

async function route() {
  const id = location.hash.slice(1);
  if (!id.startsWith("conv_") || id === open?.id) return;
  open = fresh(id);
  mark();
  const about = await attempt(() => get(path()));
  if (id !== open?.id) return;
  for (const [part, shown] of [["#conversation", about], ["#welcome", !about]]) $(part).hidden = !shown;
  if (!about) return;
  $("#main").focus({ preventScroll: true });  // now: later it would take the focus from what has been pressed by then
  $("#title").textContent = name(about);
  $("#about").textContent = [`made ${time(about.created_at)}`, about.id, about.metadata?.goal && `goal: ${about.metadata.goal.replaceAll("\n", " / ")}`].filter(Boolean).join(" · ");
  for (const id of ["#step", "#fields", "#entries", "#items", "#steps-said"]) $(id).replaceChildren();
  $("#watch").hidden = true;
  $("#search").value = "";
  await attempt(async () => { await Promise.all([items(), refresh()]); await showStep(`before=${NEWEST}`); });
}

// Texts, questions and answers.
async function items() {
  const of = open, { data, has_more: more } = await get(path("/items?limit=100&order=desc"));
  if (of !== open) return;
  const lines = data.reverse().map((item) => {
    const text = item.content.map((part) => part.text).join("\n"), answer = item.content[0]?.type === "output_text", ask = item.id.startsWith("msg_q");
    const kind = answer ? "answered" : ask ? "asked" : item.name ? `text: ${item.name}` : "text";
    const state = item.status === "in_progress" ? " · not read to its end" : answer && item.status === "incomplete" ? " · no answer" : "";
    const drop = answer || ask ? null : twice("Delete", "Delete, with what came of it?", () => change(() => remove(path(`/items/${item.id}`))));
    return el("li", {}, el("div", { className: "soft tools" }, `${kind}${state} `, drop), answer || ask ? el("div", { className: kind }, text || "–") : box(text), rated(item));
  });
  $("#items").replaceChildren(...(more ? [el("li", { className: "note" }, "Older ones are in the API's list.")] : []), ...lines);
  $("#items").scrollTop = $("#items").scrollHeight;
}

// Answers that came with a fork or an import are another's: only what was answered here has a number to rate it by.
function rated(item) {
  const number = item.id.match(/^msg_a([0-9a-f]{32})$/)?.[1];
  return number ? feedback((said) => attempt(() => post(path("/feedback"), { response: `resp_${number}`, ...said }))) : null;
}

// The log's new lines, and the memory at the moment that is looked at.
async function refresh() {
  const of = open;
  for (let more = true; more;) {
    const page = await get(path(`/operations?limit=1000&after=${of.operations.length}`));
    of.operations.push(...page.data);
    more = page.has_more;
  }
  if (of === open) await showMemory();
}

async function showMemory() {
  const of = open, at = of.at ?? of.operations.length;
  const memory = await get(path(of.at === null ? "/memory" : `/memory?at=${of.at}`));
  if (of !== open || (of.at ?? of.operations.length) !== at) return;  // the slider has gone on
  of.memory = memory;
  const slider = $("#at"), last = of.operations[at - 1];
  slider.max = of.operations.length;
  slider.value = at;
  for (const [id, off] of [["#earlier", at === 0], ["#later", of.at === null], ["#now", of.at === null]]) $(id).disabled = off;
  $("#moment").textContent = `${of.at === null ? "Now, after" : "As it was after"} ${at} of ${of.operations.length} operations${last ? ` · ${said(last)}` : ""}`;
  slider.setAttribute("aria-valuetext", $("#moment").textContent);
  $("#fields").replaceChildren(el("h5", {}, "Scratchpad"), box(memory.scratchpad), el("h5", {}, "Query"), box(memory.query));
  showEntries();
}

function showEntries(found = null) {
  const wanted = $("#search").value.toLowerCase(), { entries, shown } = open.memory, scores = new Map(shown.map((item) => [item.entry, item.score]));
  const fits = found ?? entries.filter((entry) => `${entry.text} ${entry.source?.piece ?? ""} entry ${entry.id}`.toLowerCase().includes(wanted));
  $("#count").textContent = `${fits.length} of ${entries.length} entries${found ? " fit best" : ""}${fits.length > MOST ? `, the first ${MOST} here` : ""}`;
  $("#entries").replaceChildren(...fits.slice(0, MOST).map((entry) => entryShown(entry, scores.get(entry.id))));
}

function entryShown(entry, score) {
  const past = open.at !== null, from = sourceName(entry.source), content = el("div", {}, box(entry.text));
  const wrote = open.operations.slice(0, open.at ?? undefined).findLast((item) => item.entry_id === entry.id && ["create", "update"].includes(item.kind) && !item.outcome)?.actor;
  const about = [`entry ${entry.id}`, source(entry.source), `written at step ${entry.source?.step ?? entry.updated}${wrote && wrote !== "policy" ? ` by ${wrote}` : ""}`, `shown ${entry.shown} times`, score === undefined ? "" : `shown next (${score.toFixed(3)})`];
  const told = el("div", {}, open.expanded.has(entry.id) ? history(entry.id, open.operations, goTo) : null);
  const toggle = button("History", () => {
    if (!open.expanded.delete(entry.id)) open.expanded.add(entry.id);
    toggle.setAttribute("aria-expanded", open.expanded.has(entry.id));
    told.replaceChildren(...(open.expanded.has(entry.id) ? [history(entry.id, open.operations, goTo)] : []));
  });
  toggle.setAttribute("aria-expanded", open.expanded.has(entry.id));
  const tools = el("div", { className: "tools" }, toggle,
    past ? null : button("Edit", () => edit(entry, content)),
    past ? null : twice("Delete", "Delete this entry?", () => change(() => remove(path(`/entries/${entry.id}`)))),
    past || !from ? null : twice("Delete by source", "Delete all that came from there?", () => change(() => remove(path(`/sources/${encodeURIComponent(from)}`)))));
  return el("li", { id: `entry-${entry.id}`, className: score === undefined ? "" : "shown", tabIndex: -1 }, el("div", { className: "soft" }, about.filter(Boolean).join(" · ")), content, tools, told);
}

function edit(entry, content) {
  const area = el("textarea", { value: entry.text, rows: 4, ariaLabel: `Text of entry ${entry.id}` });
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); change(() => post(path(`/entries/${entry.id}`), { text: area.value })); } }, area, el("div", { className: "tools" }, el("button", {}, "Save"), button("Cancel", () => showEntries())));
  area.onkeydown = (event) => { if (event.key === "Escape") showEntries(); };
  content.replaceChildren(form);
  area.focus();
}

// What the owner changes: then the log has grown, and now is looked at.
const change = (work) => attempt(async () => { await work(); open.at = null; await Promise.all([refresh(), items()]); });

// The slider: the memory after so many operations, and the step that the last of them was of.
async function goTo(at) {
  open.at = at >= open.operations.length ? null : Math.max(0, at);
  await attempt(async () => {
    const last = open.operations[(open.at ?? open.operations.length) - 1];
    await Promise.all([showMemory(), last && showStep(`before=${last.version + 1}`)]);
  });
}

async function showStep(where) {
  const of = open, { data } = await get(path(`/steps?limit=1&${where}`));
  if (of !== open) return;
  if (data.length) [of.step] = data;
  $("#previous").disabled = !of.step || of.step.index === 0;
  $("#next").disabled = !data.length;
  const openEntry = (id) => { $("#search").value = `entry ${id}`; showEntries(); $(`#entry-${id}`)?.focus(); };
  if (of.step) $("#step").replaceChildren(...stepShown(of.step, of.operations.filter((item) => item.version === of.step.version), openEntry)); else $("#step").replaceChildren(el("p", { className: "empty" }, "No step yet."));
}
const stepBy = (direction) => open?.step && attempt(() => showStep(direction > 0 ? `after=${open.step.version}` : `before=${open.step.version}`));

// Reading and asking take their time: what has happened is looked at meanwhile.
async function working(form, told, work) {
  const of = open, parts = [...$("#conversation").querySelectorAll("#add button, #ask button, #ask input")];
  parts.forEach((part) => { part.disabled = true; });
  $("#watch").hidden = false;
  $("#doing").textContent = told;
  $("#steps-said").replaceChildren();
  of.at = null;
  const poll = setInterval(() => { if (of === open) refresh().catch(() => {}); }, 700);
  const done = await attempt(async () => {
    try { await work(of); } finally {
      clearInterval(poll);
      if (of === open) { await Promise.all([items(), refresh()]); await showStep(`before=${NEWEST}`); }
    }
    return true;
  });
  parts.forEach((part) => { part.disabled = false; });
  if (of !== open) return;
  $("#doing").textContent = done ? "Done" : "Not done";
  if (done) form.reset();
}

async function ask(of, question) {
  const body = { model: model.id, conversation: of.id, input: question };
  for await (const event of stream("responses", body)) {
    if (of !== open) continue;
    if (event.type === "response.reasoning_summary_text.done") $("#steps-said").append(el("li", {}, event.text));
    if (event.type === "response.failed") throw new Error(event.response.error.message);
    if (event.type === "response.completed" || event.type === "response.incomplete") {
      const used = event.response.memory.map((entry) => entry.id);
      $("#steps-said").append(el("li", { className: "soft" }, used.length ? `in front of it when it answered: entries ${used.join(", ")}` : "no entry was in front of it when it answered"));
    }
  }
}

const submit = (selector, work) => { $(selector).onsubmit = (event) => { event.preventDefault(); work(event.target); }; };
submit("#key form", (form) => { setKey(form.key.value.trim()); form.reset(); attempt(start); });
submit("#new", (form) => attempt(async () => {
  const metadata = Object.fromEntries(["title", "goal"].map((key) => [key, form[key].value.trim()]).filter(([, value]) => value));
  const about = await post("conversations", { metadata });
  form.reset();
  await list();
  location.hash = about.id;
}));
submit("#add form", (form) => working(form, "Reading", (of) => post(`conversations/${of.id}/items`, { items: [{ role: "user", content: form.text.value, name: form.name.value.trim() }] })));
submit("#ask", (form) => working(form, `Asked: ${form.question.value}`, (of) => ask(of, form.question.value)));
$("#leave").onclick = () => { setKey(""); open = null; $("#conversation").hidden = true; $("#welcome").hidden = false; location.hash = ""; attempt(start); };
const erase = twice("Delete for good", "Delete all of it, for good?", () => attempt(async () => {
  await remove(path());
  open = null;
  location.hash = "";
  $("#conversation").hidden = true;
  $("#welcome").hidden = false;
  await list();
}));
erase.id = "erase";
$("#erase").replaceWith(erase);
let moving = 0;  // a slider on its way says every place it passes
$("#at").oninput = (event) => { clearTimeout(moving); moving = setTimeout(() => goTo(Number(event.target.value)), 100); };
$("#earlier").onclick = () => goTo((open.at ?? open.operations.length) - 1);
$("#later").onclick = () => goTo((open.at ?? open.operations.length) + 1);
$("#now").onclick = () => goTo(Infinity);
$("#search").oninput = () => showEntries();
// Enter looks by meaning: the entries that the policy would be shown for these words, best first.
submit("#find", (form) => attempt(async () => {
  if (!form.query.value.trim()) return;
  open.at = null;
  const { data } = await get(path(`/recall?query=${encodeURIComponent(form.query.value)}`));
  await showMemory();
  showEntries(data);
}));
$("#fork").onclick = () => attempt(async () => { const about = await post(path(`/fork${open.at === null ? "" : `?at=${open.at}`}`)); await list(); location.hash = about.id; });
$("#export").onclick = () => attempt(async () => {
  const link = el("a", { href: URL.createObjectURL(await file(path("/export"))), download: `${open.id}.jsonl` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
});
$("#previous").onclick = () => stepBy(-1);
$("#next").onclick = () => stepBy(1);
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "/" && !typing && open) { event.preventDefault(); $("#search").focus(); }
  if (event.key === "Enter" && event.ctrlKey && event.target.matches("textarea")) event.target.form.requestSubmit();
  if (["ArrowLeft", "ArrowRight"].includes(event.key) && event.target.closest("#step")) { event.preventDefault(); stepBy(event.key === "ArrowRight" ? 1 : -1); }
});
window.onhashchange = () => attempt(route);
attempt(start);
