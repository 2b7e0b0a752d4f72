// An agent in Node.js whose rollouts are recorded by the policy endpoint: nothing here knows lightning_sdk.
//
//   lsdk serve ./SmolLM2-135M-Instruct --name smollm2
//   npm install openai
//   node agent.mjs http://127.0.0.1:8317 64+16
//
// With a token, the endpoint takes it as the API key: set OPENAI_API_KEY.

import { randomUUID } from "node:crypto";
import OpenAI from "openai";

const [endpoint, sum] = process.argv.slice(2);
if (!endpoint || !sum) {
  console.error("usage: node agent.mjs http://HOST:PORT NUMBER+NUMBER");
  process.exit(2);
}

const apiKey = process.env.OPENAI_API_KEY ?? "unused";
const rollout = `${endpoint}/r/${randomUUID()}`;

// What the endpoint is told of a rollout. A reward_id makes it safe to send a reward again.
async function tell(what, body) {
  const response = await fetch(`${rollout}/${what}`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${apiKey}` },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${what}: ${await response.text()}`);
  return response.json();
}

const client = new OpenAI({ baseURL: `${rollout}/v1`, apiKey });
const tools = [
  {
    type: "function",
    function: {
      name: "calculator",
      description: "Works out an arithmetic expression.",
      parameters: { type: "object", properties: { expression: { type: "string" } } },
    },
  },
];

function add(expression) {
  return expression
    .split("+")
    .map(Number)
    .reduce((total, number) => total + number, 0);
}

async function solve() {
  const messages = [{ role: "user", content: `What is ${sum}?` }];
  for (let turn = 0; turn < 4; turn += 1) {
    // The model's name does not matter: the endpoint answers with what it serves.
    const stream = client.chat.completions.stream({ model: "default", messages, tools });
    const { message } = (await stream.finalChatCompletion()).choices[0];
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const call of message.tool_calls) {
      const { expression } = JSON.parse(call.function.arguments);
      messages.push({ role: "tool", tool_call_id: call.id, content: String(add(String(expression))) });
    }
  }
  return null;
}

await tell("start", { task_id: sum, split: "train" });
try {
  const answer = await solve();
  const right = answer?.includes(String(add(sum))) ?? false;
  await tell("reward", { value: right ? 1 : 0, reward_id: "answer" });
  await tell("end", answer === null ? { truncation_reason: "turn_limit" } : {});
  console.log(answer);
} catch (error) {
  await tell("end", { error: { type: error.name, message: error.message } });
  throw error;
}
