// The server's API, as every client has it. The key stays in this tab.
const KEY = "atommem-key";

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) => { if (key) sessionStorage.setItem(KEY, key); else sessionStorage.removeItem(KEY); };

async function send(method, path, body) {
  const headers = { ...(body && { "Content-Type": "application/json" }), ...(hasKey() && { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` }) };
  const response = await fetch(`v1/${path}`, { method, headers, body: body && JSON.stringify(body), cache: "no-store" });
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw Object.assign(new Error(told?.error?.message ?? `the server answered ${response.status}.`), { status: response.status });
}

export const get = async (path) => (await send("GET", path)).json();
export const file = async (path) => (await send("GET", path)).blob();
export const post = async (path, body = {}) => (await send("POST", path, body)).json();
export const remove = async (path) => (await send("DELETE", path)).json();

// Server-sent events of a streamed request, as objects.
export async function* stream(path, body) {
  const reader = (await send("POST", path, { ...body, stream: true })).body.pipeThrough(new TextDecoderStream()).getReader();
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
