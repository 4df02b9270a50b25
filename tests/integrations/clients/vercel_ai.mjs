// Vercel's AI SDK: two turns over responses and over chat, streams, and MCP's tools.
import assert from "node:assert/strict"
import { createMCPClient } from "@ai-sdk/mcp"
import { createOpenAI } from "@ai-sdk/openai"
import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
import { generateText, streamText } from "ai"

const url = process.argv[2]
const settings = { baseURL: `${url}/v1`, apiKey: "none", name: "atommem", includeUsage: true }
const openai = createOpenAI(settings)
const models = [
  openai.responses("scripted"),
  openai.chat("scripted"),
  createOpenAICompatible(settings)("scripted"),
]
const fact = { role: "user", content: "Ann lives in Rome." }
const question = { role: "user", content: "Where does Ann live?" }
for (const model of models) {
  const first = await generateText({ model, messages: [fact] })
  const messages = [fact, ...first.response.messages, question]
  assert.equal((await generateText({ model, messages })).text, "Ann lives in Rome.")
  const stream = streamText({ model, messages })
  assert.equal(await stream.text, "Ann lives in Rome.")
  assert.ok((await stream.totalUsage).totalTokens > 0)
}

const [model] = models
const first = await generateText({ model, messages: [fact] })
const previousResponseId = first.providerMetadata.openai.responseId
const next = await generateText({
  model,
  messages: [question],
  providerOptions: { openai: { previousResponseId } },
})
assert.equal(next.text, "Ann lives in Rome.")

const mcp = await createMCPClient({ transport: { type: "http", url: `${url}/mcp` } })
assert.deepEqual(Object.keys(await mcp.tools()).sort(), ["ask", "correct", "forget", "recall", "remember"])
await mcp.close()
