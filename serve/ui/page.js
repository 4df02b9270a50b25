// Conversations of the server, on the API that every client has. Text of clients becomes text nodes only.
const $ = (selector) => document.querySelector(selector);
let open = null;  // {id, at}: at is null for the present
let model = null;
const titles = new Map();  // first words of conversations that have no title
const LONG = 600;  // characters of a text that are shown without a click
const EXAMPLES = {  // by templates: `compact` is what the demo's policy was trained on
  compact: {
    question: "Walnutsundial made home ?",
    texts: ["Walnutsundial Toldara made Glasslantern Linvin made", "Toldara Ravengate home", "Toldara Wolfholm moved Linvin Coldgate moved"],
  },
  other: {
    question: "In which town does the maker of the hall's clock live?",
    texts: [
      "Dear Ann, the clock in the hall was made by Tomas Brenner, who lives in Lisbon. It has not stopped once since your uncle bought it.",
      "Dear Ann, the roof is mended at last, and the cherries are ripe. Paul sends his regards from Vienna.",
      "Dear Ann, news of Tomas Brenner: he has moved to Porto, and now builds clocks by the harbour.",
    ],
  },
};

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}
const button = (label, onclick) => element("button", { type: "button", onclick }, label);

async function send(method, path, body) {
  const headers = {};
  const key = sessionStorage.getItem("atommem-key");
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(`v1/${path}`, { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
  if (response.ok) return response;
  if (response.status === 401) $("#key").hidden = false;
  const answer = await response.json().catch(() => null);
  throw new Error(answer?.error?.message ?? `The server answered ${response.status}.`);
}
const get = async (path) => (await send("GET", path)).json();
const post = async (path, body = {}) => (await send("POST", path, body)).json();
const path = (rest = "") => `conversations/${open.id}${rest}`;

// Run an action; show its error in `place`, below the form or the item.
async function attempt(place, action) {
  for (const old of document.querySelectorAll(".error")) old.remove();
  try {
    await action();
  } catch (error) {
    place.append(element("p", { className: "error", role: "alert" }, error.message));
  }
}

// Yield the server-sent events of a streamed request.
async function* events(url, body) {
  const response = await send("POST", url, { ...body, stream: true });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}

async function start() {
  model = (await get("models")).data[0];
  $("#key").hidden = true;
  $("#model").textContent = `${model.id}, checkpoint ${model.checkpoint.slice(0, 12)}`;
  await listConversations();
}

// Conversations ---

const firstWords = (text) => text.trim().split(/\s+/).slice(0, 12).join(" ").slice(0, 90);
const texts = (item) => (item.content ?? [{ text: item.output ?? `${item.name ?? item.type} ${item.arguments ?? item.input ?? ""}` }])
  .map((part) => part.text ?? part.refusal ?? part.type ?? part).join("\n");

async function titleOf({ id, metadata }) {
  if (metadata?.title) return metadata.title;
  if (!titles.has(id)) {
    const [first] = (await get(`conversations/${id}/items?limit=1&order=asc`)).data;
    if (!first) return "Empty conversation";
    titles.set(id, firstWords(texts(first)));
  }
  return titles.get(id);
}

// What tells conversations apart that begin with the same text.
const about = ({ metadata: { goal = "", user, agent, session }, created_at }) =>
  [firstWords(goal), user, agent, session, new Date(1000 * created_at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })]
    .filter(Boolean).join(" \u00b7 ");

async function listConversations() {
  const { data } = await get("conversations?limit=50");
  $("#conversations").replaceChildren(...await Promise.all(data.map(async (item) => {
    const title = await titleOf(item);
    const choose = button(title, () => attempt(choose.parentNode, () => select(item.id)));
    choose.title = `${title}\n${about(item)}`;
    choose.append(element("span", { className: "meta" }, about(item)));
    choose.setAttribute("aria-current", item.id === open?.id);
    if (item.id === open?.id) {
      $("#title").textContent = title;
      $("#about").textContent = about(item);
    }
    return element("li", {}, choose);
  })));
}

// Show a conversation, or with null the form of a new one.
async function select(id) {
  const here = open = id && { id, at: null };
  const { goal = "" } = id ? (await get(path())).metadata : {};
  if (open !== here) return;  // another one was chosen meanwhile
  $("#read").elements.goal.defaultValue = goal;  // which a reset restores
  for (const form of document.forms) form.reset();
  for (const list of ["#items", "#working", "#steps ol"]) $(list).replaceChildren();
  $("#progress").textContent = "";
  $("#welcome").hidden = Boolean(id);
  for (const part of ["#actions", "#ask", "#steps", "#memory"]) $(part).hidden = !id;
  $("#steps").open = false;
  if (!id) [$("#title").textContent, $("#about").textContent] = ["New conversation", ""];
  await Promise.all([listConversations(), id && refresh()]);
}

async function create(text, goal) {
  const metadata = { title: firstWords(text), ...(goal.trim() && { goal }) };
  await select((await post("conversations", { metadata })).id);
}

async function refresh() {
  await Promise.all([showItems(), showMemory(), $("#steps").open && showSteps()]);
}

async function showItems() {
  const { data } = await get(path("/items?limit=100"));
  $("#items").replaceChildren(...data.reverse().map((item) => {
    const asked = item.id.startsWith("msg_q");
    const answered = item.content?.[0]?.type === "output_text";
    const kind = asked ? "question" : answered ? "answer" : item.name || "text";
    const { chunks_read, chunks } = item.progress ?? {};
    const read = chunks ? ` (${chunks_read} of ${chunks} chunks)` : "";
    const state = item.status === "completed" ? "" : `, ${item.status.replace("_", " ")}${read}`;
    const line = element("li", {}, element("span", { className: "meta" }, `${kind}${state} `));
    line.firstChild.append(button("Delete", () => edit(line, "DELETE", `/items/${item.id}`)));
    const text = texts(item);
    line.append(text.length > LONG ? fold(`${firstWords(text)} ... (${text.length.toLocaleString()} characters)`, text) : text);
    const reason = item.note ?? item.incomplete_details?.reason;
    if (reason) line.append(element("span", { className: "meta" }, reason));
    return line;
  }));
  $("#items").scrollTop = $("#items").scrollHeight;
}

const fold = (label, text) => element("details", {}, element("summary", {}, label), element("pre", {}, text));

// Show all steps, with prompt and completion as the model saw and wrote them.
async function showSteps() {
  let found = { has_more: true, data: [] };
  const steps = [];
  while (found.has_more) {
    found = await get(path(`/steps?limit=100&after=${found.data.at(-1)?.version ?? 0}`));
    steps.push(...found.data);
  }
  $("#steps ol").replaceChildren(...steps.map((step) => {
    const wrote = `--- completion (${step.completion_tokens} tokens, ${step.finish_reason}) ---`;
    const label = `step ${step.index + 1}, ${step.observation.label}`;
    return element("li", {}, fold(label, `${step.prompt}\n\n${wrote}\n${step.text}`));
  }));
}

async function showMemory() {
  const memory = await get(path(open.at === null ? "/memory" : `/memory?at=${open.at}`));
  $("#at").max = memory.operations;
  $("#at").value = memory.at;
  $("#count").textContent = `${memory.at} of ${memory.operations} operations`;
  $("#scratchpad").textContent = memory.scratchpad || "(empty)";
  const shown = new Set(memory.shown.map((item) => item.entry));
  $("#entries").replaceChildren(...memory.entries.map((entry) => {
    const from = entry.source?.piece ? ` from ${entry.source.piece}` : "";
    const meta = element("span", { className: "meta" }, `entry ${entry.id}${from} `);
    const line = element("li", { className: shown.has(entry.id) ? "shown" : "" }, meta, entry.text);
    const place = `/entries/${entry.id}`;
    const change = () => {
      const text = element("textarea", { rows: 3, value: entry.text, ariaLabel: "Text of the entry" });
      const save = button("Save", () => edit(line, "POST", place, { text: text.value }));
      line.replaceChildren(meta, text, save, " ", button("Cancel", () => attempt(line, showMemory)));
    };
    if (open.at === null) meta.append(button("Edit", change), button("Delete", () => edit(line, "DELETE", place)));
    return line;
  }));
}

const edit = (line, method, rest, body) => attempt(line, async () => {
  await send(method, path(rest), body);
  await refresh();
});

// Forms ---

// Both go on in the conversation where they began, also if another one is shown meanwhile.
async function read(items, here = open) {
  here.at = null;
  $("#progress").textContent = "Reading ...";
  const timer = setInterval(() => open === here && Promise.all([showItems(), showMemory()]).catch(() => {}), 2000);
  try {
    const { cut, written, note } = await post(`conversations/${here.id}/items`, { items });
    const limits = cut ? `Limits cut ${Math.ceil(100 * cut)}% of what the policy wrote.` : "";
    $("#progress").textContent = note ?? (Object.values(written).some(Boolean) ? limits : "Nothing was kept of it.");
  } catch (error) {
    $("#progress").textContent = "";
    throw error;
  } finally {
    clearInterval(timer);
    if (open === here) await refresh();  // also shows texts that were accepted and not read to the end
  }
}

async function ask(question, here = open) {
  const waiting = element("li", {}, "Answering ...");
  $("#working").replaceChildren(waiting);
  try {
    for await (const event of events("responses", { model: model.id, conversation: here.id, input: question })) {
      if (event.type === "response.reasoning_summary_text.done") waiting.before(element("li", {}, event.text));
      if (event.type === "response.failed") throw new Error(event.response.error.message);
    }
  } finally {
    waiting.remove();
  }
  here.at = null;
  if (open === here) await refresh();
}

function onSubmit(selector, action) {
  $(selector).onsubmit = (event) => {
    event.preventDefault();
    busy(event.target, () => action(Object.fromEntries(new FormData(event.target)), event.target));
  };
}

async function busy(form, action) {
  const submit = form.querySelectorAll("button");
  for (const each of submit) each.disabled = true;
  await attempt(form, action);
  for (const each of submit) each.disabled = false;
}

onSubmit("#key", ({ key }) => {
  sessionStorage.setItem("atommem-key", key.trim());
  return start();
});
onSubmit("#read", async ({ name, text, goal }, form) => {
  if (!open) await create(text, goal);
  else if (goal !== form.elements.goal.defaultValue) {
    const { metadata } = await get(path());
    await post(path(), { metadata: { ...metadata, goal } });
    form.elements.goal.defaultValue = goal;
    await listConversations();
  }
  form.elements.text.value = text;
  const here = open;
  await read([{ role: "user", content: text, name }]);
  if (open === here) form.reset();
});
onSubmit("#ask", async ({ question }, form) => {
  await ask(question);
  form.reset();
});
$("#example").onclick = () => busy($("#read"), async () => {
  const { question, texts: letters } = EXAMPLES[model.templates] ?? EXAMPLES.other;
  await create(`Example: ${question}`, question);
  const here = open;
  for (const [index, content] of letters.entries()) await read([{ role: "user", content, name: `letter ${index + 1}` }], here);
  await ask(question, here);
});

// Show the text of files, to be changed and read.
const base64 = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.split(",")[1] ?? "");
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});
const openFiles = (files) => busy($("#read"), async () => {
  const found = [], notes = [];
  $("#progress").textContent = "Opening ...";
  try {
    for (const file of files) {
      const { text, left_out } = await post("extract", { name: file.name, data: await base64(file) });
      found.push(files.length > 1 ? `Document ${found.length + 1}: ${file.name}\n${text}` : text);
      notes.push(...left_out.map((note) => `${file.name}: ${note}`));
    }
  } finally {
    $("#progress").textContent = notes.length ? `Left out: ${notes.join("; ")}` : "";
  }
  const { text, name } = $("#read").elements;
  text.value = found.join("\n\n");
  name.value = [...files].map((file) => file.name).join(", ").slice(0, 200);
});
$("#files").onchange = ({ target }) => openFiles(target.files);
const field = $("#read textarea");
for (const kind of ["dragover", "dragleave", "drop"]) {
  field.addEventListener(kind, (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    field.classList.toggle("over", kind === "dragover");
    if (kind === "drop") openFiles(event.dataTransfer.files);
  });
}

$("#new").onclick = () => attempt($("nav"), () => select(null));
$("#steps").ontoggle = () => attempt($("#steps"), async () => $("#steps").open && showSteps());
$("#at").onchange = ({ target }) => attempt($("#memory"), async () => {
  open.at = target.value === target.max ? null : Number(target.value);
  await showMemory();
});
$("#fork").onclick = () => attempt($("#actions"), async () => select((await post(path(open.at === null ? "/fork" : `/fork?at=${open.at}`))).id));
$("#delete").onclick = () => attempt($("#actions"), async () => {
  if (!confirm("Delete this conversation with its log?")) return;
  await send("DELETE", path());
  await select(null);
});
attempt($("#welcome"), start);
