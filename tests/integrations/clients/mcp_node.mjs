// MCP's SDKs for Node, 2.x and 1.x: all tools over streamable HTTP.
import assert from "node:assert/strict"
import * as current from "@modelcontextprotocol/client"
import { Client } from "@modelcontextprotocol/sdk/client/index.js"
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js"

for (const sdk of [current, { Client, StreamableHTTPClientTransport }]) {
  const client = new sdk.Client({ name: "example", version: "1.0.0" })
  const url = new URL(`${process.argv[2]}/mcp`)
  await client.connect(new sdk.StreamableHTTPClientTransport(url))
  const call = async (name, values) => {
    const result = await client.callTool({ name, arguments: values })
    assert.ok(!result.isError, JSON.stringify(result))
    return result.structuredContent
  }

  assert.equal((await client.listTools()).tools.length, 5)
  const told = { text: "Ann lives in Rome.", conversation: null, name: "letter" }
  const { conversation } = await call("remember", told)
  const { answer } = await call("ask", { conversation, question: "Where does Ann live?" })
  assert.equal(answer, "Ann lives in Rome.")
  const found = await call("recall", { conversation, query: "Rome" })
  assert.equal(found.result[0].text, "Ann lives in Rome.")
  await call("forget", { conversation, source: "letter" })
  assert.deepEqual((await call("recall", { conversation, query: "Rome" })).result, [])
  await client.close()
}
