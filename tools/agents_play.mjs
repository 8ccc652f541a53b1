// Plays a task behind `agentgym-env harness` by the vendors' clients of npm: scripts/agents.sh.
//
//     node agents_play.mjs openai|anthropic
//
// The task and the tools are those of agents_play.py.

import { readFileSync, writeFileSync } from "node:fs";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const task = JSON.parse(readFileSync(process.env.AGENTGYM_TASK, "utf8"));
const callsMax = Number(process.env.AGENTGYM_CALLS_MAX);
const streams = task.item % 2 === 1;

async function post(path, body) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`${process.env.TOOLBOX_URL}/${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  return answer.json();
}

const { id } = await post("create", {});
const { observation } = await post("reset", { id, data_idx: task.item });
const prompt = `${task.instruction}\n\n${observation}`;
let [reward, done] = [0, false];

async function call(name, args) {
  const step = await post("step", { id, action: JSON.stringify({ name, arguments: args }) });
  [reward, done] = [step.reward ?? reward, step.done ?? false];
  return step.observation ?? step.error;
}

async function openai() {
  const client = new OpenAI();
  const messages = [{ role: "user", content: prompt }];
  for (let turn = 0; turn < callsMax; turn++) {
    const asked = { model: "policy", messages, tools: task.tools };
    const completion = streams
      ? await client.chat.completions.stream(asked).finalChatCompletion()
      : await client.chat.completions.create(asked);
    const said = completion.choices[0].message;
    const { parsed, ...sent } = said;
    messages.push(sent);
    for (const one of said.tool_calls ?? []) {
      const content = await call(one.function.name, JSON.parse(one.function.arguments));
      messages.push({ role: "tool", tool_call_id: one.id, content });
    }
    if (done || !said.tool_calls?.length) return;
  }
}

async function anthropic() {
  const client = new Anthropic();
  const tools = task.tools.map(({ function: f }) => ({ name: f.name, description: f.description, input_schema: f.parameters }));
  const messages = [{ role: "user", content: prompt }];
  for (let turn = 0; turn < callsMax; turn++) {
    const asked = { model: "policy", max_tokens: 48, messages, tools };
    const said = streams ? await client.messages.stream(asked).finalMessage() : await client.messages.create(asked);
    messages.push({ role: "assistant", content: said.content });
    const results = [];
    for (const block of said.content.filter((block) => block.type === "tool_use")) {
      results.push({ type: "tool_result", tool_use_id: block.id, content: await call(block.name, block.input) });
    }
    if (done || !results.length) return;
    messages.push({ role: "user", content: results });
  }
}

try {
  await { openai, anthropic }[process.argv[2]]();
} catch (error) {
  // What the policy said cannot be carried out, or it may say no more: the episode is over.
  console.log(`${error}`.slice(0, 300));
}
writeFileSync(process.env.AGENTGYM_REWARD, JSON.stringify({ reward }));
