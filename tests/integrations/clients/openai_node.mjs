// OpenAI's client: conversations, history with tool calls, streams, retries, files of a store.
import assert from "node:assert/strict"
import OpenAI, { BadRequestError } from "openai"

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" })
const model = "scripted"
const fact = { role: "user", content: "Ann lives in Rome." }
const question = { role: "user", content: "Where does Ann live?" }

const first = await client.responses.create({ model, input: [fact, question] })
assert.equal(first.output_text, "Ann lives in Rome.")
const again = await client.responses.create({ model, input: [fact, ...first.output, question] })
assert.equal(again.output_text, "Ann lives in Rome.")
const next = await client.responses.create({
  model,
  input: "Where does Ann live?",
  previous_response_id: first.id,
})
assert.equal(next.output_text, "Ann lives in Rome.")

const call = { id: "call_1", type: "function", function: { name: "look", arguments: "{}" } }
const history = [
  { role: "user", content: "Look Ann up." },
  { role: "assistant", content: null, tool_calls: [call] },
  { role: "tool", tool_call_id: "call_1", content: "Ann lives in Rome." },
  question,
]
const conversation = await client.conversations.create({ items: [], metadata: { user: "ann" } })
for (const messages of [history, [...history, question]]) {
  const chat = await client.chat.completions.create({ model, messages, conversation })
  assert.match(chat.choices[0].message.content, /Rome/)
}
const items = []
for await (const item of client.conversations.items.list(conversation.id, { limit: 2 })) items.push(item)
assert.equal(items.filter((item) => item.type === "function_call").length, 1)
for (const item of items) {
  await client.conversations.items.delete(item.id, { conversation_id: conversation.id })
}
assert.deepEqual((await client.conversations.items.list(conversation.id)).data, [])

const stream = client.responses.stream({ model, input: [fact, question] })
assert.equal((await stream.finalResponse()).output_text, "Ann lives in Rome.")
const options = { include_usage: true }
const chunks = client.chat.completions.stream({ model, messages: history, stream_options: options })
assert.ok((await chunks.totalUsage()).total_tokens > 0)
await assert.rejects(client.responses.create({ model, input: [] }), BadRequestError)
