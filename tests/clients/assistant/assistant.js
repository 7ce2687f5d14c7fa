// Calls tools of an MCP server. Each call is a line of JSON on standard input, each result one on standard output.
//
//   node assistant.js '{"url": "http://127.0.0.1:8484/mcp", "key": "pstk_…"}'
//   node assistant.js '{"command": "penstock", "args": ["mcp", "--write"]}'
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const where = JSON.parse(process.argv[2]);
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

function transport() {
  if (where.url === undefined) return new StdioClientTransport({ ...where, stderr: "inherit" });
  const headers = { Authorization: `Bearer ${where.key}` };
  return new StreamableHTTPClientTransport(new URL(where.url), { requestInit: { headers } });
}

const client = new Client({ name: "penstock-example-assistant", version: "1.0.0" });
await client.connect(transport());
// The SDK checks results against the schemas of this list.
const { tools } = await client.listTools();
say({ tools });
for await (const line of createInterface({ input: process.stdin })) {
  const progress = [];
  try {
    const options = { timeout: 180_000, resetTimeoutOnProgress: true, onprogress: (step) => progress.push(step) };
    const result = await client.callTool(JSON.parse(line), undefined, options);
    say({ ...result, progress });
  } catch (error) {
    say({ broken: String(error), progress });
  }
}
await client.close();
