// OpenClaw's memory slot: a turn is remembered, and put in front of a later one, by OpenClaw's own
// command with a model that is a double.
import assert from "node:assert/strict"
import { spawn } from "node:child_process"
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { createServer } from "node:http"
import { tmpdir } from "node:os"
import { join } from "node:path"

const [url, examples] = process.argv.slice(2)
const asked = []
const model = createServer(async (request, response) => {
  let body = ""
  for await (const part of request) body += part
  if (request.method === "POST") asked.push(JSON.parse(body).messages.at(-1).content)
  const head = { id: "c", object: "chat.completion.chunk", created: 1, model: "double" }
  const delta = { role: "assistant", content: "Noted." }
  const chunk = { ...head, choices: [{ index: 0, delta, finish_reason: "stop" }] }
  response.writeHead(200, { "Content-Type": "text/event-stream" })
  response.end(`data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`)
})
await new Promise((resolve) => model.listen(0, "127.0.0.1", resolve))

const home = mkdtempSync(join(tmpdir(), "openclaw-"))
const file = join(home, "openclaw.json")
const env = { ...process.env, HOME: home, OPENCLAW_STATE_DIR: home, OPENCLAW_CONFIG_PATH: file }
const double = {
  baseUrl: `http://127.0.0.1:${model.address().port}/v1`,
  apiKey: "none",
  api: "openai-completions",
  models: [{ id: "double", name: "double", contextWindow: 128000, maxTokens: 1000 }],
}
const hooks = { allowConversationAccess: true }
const config = {
  agents: { defaults: { model: { primary: "local/double" }, workspace: join(home, "work") } },
  models: { providers: { local: double } },
  plugins: {
    load: { paths: [join(examples, "openclaw")] },
    slots: { memory: "atommem" },
    entries: { atommem: { enabled: true, config: { url }, hooks } },
  },
}
writeFileSync(file, JSON.stringify(config))

const turn = (session, message) =>
  new Promise((resolve) => {
    const flags = ["agent", "--local", "--session-id", session, "--message", message]
    const command = ["node_modules/openclaw/openclaw.mjs", ...flags]
    spawn("node", command, { env, stdio: ["ignore", "ignore", "inherit"] }).on("exit", resolve)
  })

assert.equal(await turn("first", "Ann lives in Rome."), 0)
assert.equal(await turn("second", "Where does Ann live?"), 0)
assert.match(asked.at(-1), /memory.*\n- Ann lives in Rome\.\n(.*\n)*.*Where does Ann live\?/)
model.close()
rmSync(home, { recursive: true })
