// Conversations of the server, on the API that every client has. Text of clients becomes text nodes only.
const $ = (selector) => document.querySelector(selector);
let open = null;  // {id, at}: at is null for the present
let model = null;

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

// Run an action and show its error.
async function attempt(action, undo = () => {}) {
  $("#error").hidden = true;
  try {
    await action();
  } catch (error) {
    undo();
    $("#error").textContent = error.message;
    $("#error").hidden = false;
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
  $("#model").textContent = `${model.id}, checkpoint ${model.checkpoint}`;
  await listConversations();
}

async function listConversations() {
  const { data } = await get("conversations?limit=100");
  $("#conversations").replaceChildren(...data.map((item) => {
    const label = item.metadata?.title || item.metadata?.goal || item.id;
    const choose = button(label, () => attempt(() => select(item.id)));
    choose.setAttribute("aria-current", item.id === open?.id);
    return element("li", {}, choose);
  }));
}

async function select(id) {
  open = { id, at: null };
  $("#conversation").hidden = false;
  $("#id").textContent = id;
  $("#steps").replaceChildren();
  await Promise.all([listConversations(), refresh()]);
}

async function refresh() {
  await Promise.all([showItems(), showMemory()]);
}

async function showItems() {
  const { data } = await get(path("/items?limit=100"));
  $("#items").replaceChildren(...data.reverse().map((item) => {
    const parts = item.content ?? [{ text: item.output ?? `${item.name ?? item.type} ${item.arguments ?? item.input ?? ""}` }];
    const asked = item.id.startsWith("msg_q");
    const answered = parts[0]?.type === "output_text";
    const kind = asked ? "question" : answered ? "answer" : `text ${item.name ?? ""}`;
    const state = item.status === "completed" ? "" : `, ${item.status}`;
    const meta = element("span", { className: "meta" }, `${kind}${state} `);
    meta.append(button("Delete", () => edit("DELETE", `/items/${item.id}`)));
    const reason = item.note ?? item.incomplete_details?.reason;
    const note = reason ? [element("span", { className: "meta" }, reason)] : [];
    return element("li", {}, meta, parts.map((part) => part.text ?? part.refusal ?? part.type ?? part).join("\n"), ...note);
  }));
  $("#items").scrollTop = $("#items").scrollHeight;
}

// Show the last steps whole: prompt and completion, as the model saw and wrote them.
async function showSteps() {
  let found = { has_more: true, data: [] };
  while (found.has_more) found = await get(path(`/steps?limit=100&after=${found.data.at(-1)?.version ?? 0}`));
  $("#steps").replaceChildren(...found.data.map((step) => {
    const text = `${step.prompt}\n\n--- completion (${step.completion_tokens} tokens, ${step.finish_reason}) ---\n${step.text}`;
    const label = `step ${step.index}, ${step.observation.label}`;
    return element("li", {}, element("details", {}, element("summary", {}, label), element("pre", {}, text)));
  }));
}

async function showMemory() {
  const memory = await get(path(open.at === null ? "/memory" : `/memory?at=${open.at}`));
  $("#at").max = memory.operations;
  $("#at").value = memory.at;
  $("#count").textContent = `${memory.at} of ${memory.operations} operations`;
  $("#scratchpad").textContent = memory.scratchpad;
  const shown = new Set(memory.shown.map((item) => item.entry));
  $("#entries").replaceChildren(...memory.entries.map((entry) => {
    const meta = element("span", { className: "meta" }, `entry ${entry.id}${entry.source?.piece ? ` from ${entry.source.piece}` : ""} `);
    const place = `/entries/${entry.id}`;
    const change = () => {
      const text = prompt("Text of the entry", entry.text);
      if (text) edit("POST", place, { text });
    };
    if (open.at === null) meta.append(button("Edit", change), button("Delete", () => edit("DELETE", place)));
    return element("li", { className: shown.has(entry.id) ? "shown" : "" }, meta, entry.text);
  }));
}

const edit = (method, rest, body) => attempt(async () => {
  await send(method, path(rest), body);
  await refresh();
});

function onSubmit(selector, action) {
  $(selector).onsubmit = (event) => {
    event.preventDefault();
    const form = event.target;
    const submit = form.querySelector("button");
    submit.disabled = true;
    attempt(async () => {
      await action(Object.fromEntries(new FormData(form)));
      form.reset();
    }).finally(() => { submit.disabled = false; });
  };
}

onSubmit("#key", ({ key }) => {
  sessionStorage.setItem("atommem-key", key.trim());
  return start();
});
onSubmit("#create", async ({ goal }) => select((await post("conversations", { metadata: goal.trim() ? { goal } : {} })).id));
onSubmit("#read", async ({ name, text }) => {
  $("#progress").textContent = "Reading: the memory shows what is kept so far.";
  open.at = null;
  const timer = setInterval(() => showMemory().catch(() => {}), 2000);
  try {
    await post(path("/items"), { items: [{ role: "user", content: text, name }] });
  } finally {
    clearInterval(timer);
    $("#progress").textContent = "";
  }
  await refresh();
});
onSubmit("#ask", async ({ question }) => {
  $("#steps").replaceChildren();
  for await (const event of events("responses", { model: model.id, conversation: open.id, input: question })) {
    if (event.type === "response.reasoning_summary_text.done") $("#steps").append(element("li", {}, event.text));
    if (event.type === "response.failed") throw new Error(event.response.error.message);
  }
  open.at = null;
  await refresh();
});
// Show the text of files, to be changed and read.
const base64 = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.split(",")[1] ?? "");
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});
$("#files").onchange = ({ target }) => attempt(async () => {
  const texts = [], notes = [];
  $("#progress").textContent = "Opening ...";
  for (const file of target.files) {
    const { text, left_out } = await post("extract", { name: file.name, data: await base64(file) });
    texts.push(target.files.length > 1 ? `Document ${texts.length + 1}: ${file.name}\n${text}` : text);
    notes.push(...left_out.map((note) => `${file.name}: ${note}`));
  }
  target.form.elements.text.value = texts.join("\n\n");
  target.form.elements.name.value = [...target.files].map((file) => file.name).join(", ").slice(0, 200);
  $("#progress").textContent = notes.length ? `Left out: ${notes.join("; ")}` : "";
}, () => { $("#progress").textContent = ""; });
$("#prompts").onclick = () => attempt(showSteps);
$("#at").onchange = (event) => attempt(async () => {
  open.at = event.target.value === event.target.max ? null : Number(event.target.value);
  await showMemory();
});
$("#fork").onclick = () => attempt(async () => select((await post(path(open.at === null ? "/fork" : `/fork?at=${open.at}`))).id));
$("#delete").onclick = () => attempt(async () => {
  if (!confirm("Delete this conversation with its log?")) return;
  await send("DELETE", path());
  open = null;
  $("#conversation").hidden = true;
  await listConversations();
});
attempt(start);
