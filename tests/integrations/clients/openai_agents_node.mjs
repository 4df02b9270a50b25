// OpenAI Agents SDK: sessions on the server, a session of its own, and earlier responses.
import assert from "node:assert/strict"
import {
  Agent,
  MemorySession,
  OpenAIChatCompletionsModel,
  OpenAIConversationsSession,
  OpenAIResponsesModel,
  run,
  setTracingDisabled,
  user,
} from "@openai/agents"
import OpenAI from "openai"

setTracingDisabled(true)
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" })
const agents = [OpenAIResponsesModel, OpenAIChatCompletionsModel].map(
  (Model) => new Agent({ name: "memory", model: new Model(client, "scripted") }),
)
const question = "Where does Ann live?"
for (const agent of agents) {
  const session = new MemorySession()
  await run(agent, "Ann lives in Rome.", { session })
  assert.equal((await run(agent, question, { session })).finalOutput, "Ann lives in Rome.")
}

const [agent] = agents
const first = await run(agent, "Ann lives in Rome.")
const fed = await run(agent, [...first.history, user(question)])
assert.equal(fed.finalOutput, "Ann lives in Rome.")
const next = await run(agent, question, { previousResponseId: first.lastResponseId })
assert.equal(next.finalOutput, "Ann lives in Rome.")

const session = new OpenAIConversationsSession({ client })
await session.addItems([user("Bob lives in Oslo.")])
const stream = await run(agent, "Where does Bob live?", { session, stream: true })
await stream.completed
assert.equal(stream.finalOutput, "Bob lives in Oslo.")
const items = await session.getItems()
assert.equal(items[0].content[0].text, "Bob lives in Oslo.")
assert.deepEqual(await session.popItem(), items.at(-1))
assert.deepEqual(await session.getItems(), items.slice(0, -1))
const { id: conversationId } = await client.conversations.create()
await run(agent, "Cid lives in Bern.", { conversationId })
const answer = await run(agent, "Where does Cid live?", { conversationId })
assert.equal(answer.finalOutput, "Cid lives in Bern.")
await session.clearSession()
