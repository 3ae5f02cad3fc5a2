// LangChain.js's agent, a LangGraph of a model and its tools, and a graph of one's own with a memory.

import assert from "node:assert/strict";

import { tool } from "@langchain/core/tools";
import { MemorySaver, MessagesAnnotation, StateGraph } from "@langchain/langgraph";
import { ToolNode } from "@langchain/langgraph/prebuilt";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, providerStrategy } from "langchain";
import { z } from "zod";

import { API_KEY, BASE_URL, MODEL, client } from "./case.mjs";

process.env.LANGSMITH_TRACING = "false"; // it would send traces to its maker

const CLIENT = client("LangGraph.js", "@langchain/langgraph");
const LookUp = z.object({ name: z.enum(["len", "print", "sorted"]) });
const lookUp = tool(({ name }) => `${name} is documented.`, {
  name: "look_up",
  description: "Looks a builtin up",
  schema: LookUp,
});
const llm = new ChatOpenAI({
  model: MODEL,
  apiKey: API_KEY,
  configuration: { baseURL: BASE_URL },
  maxRetries: 0,
  temperature: 0,
  maxTokens: 60,
});
const QUESTION = { messages: [{ role: "user", content: "What does len do?" }] };

CLIENT.case("basic", async () => {
  const { messages } = await createAgent({ model: llm, tools: [] }).invoke(QUESTION);
  assert.match(messages.at(-1).text, /number of items/);
  return messages.at(-1).text;
});

CLIENT.case("stream", async () => {
  const agent = createAgent({ model: llm, tools: [] });
  let text = "";
  for await (const [chunk] of await agent.stream(QUESTION, { streamMode: "messages" })) text += chunk.text;
  const { messages } = await agent.invoke(QUESTION);
  assert.equal(text, messages.at(-1).text);
  return text;
});

CLIENT.case("structured", async () => {
  const Builtin = z.object({ name: z.string().max(8), kind: z.enum(["function", "class"]) });
  const agent = createAgent({ model: llm, tools: [], responseFormat: providerStrategy(Builtin) });
  const { structuredResponse } = await agent.invoke(QUESTION);
  return JSON.stringify(Builtin.parse(structuredResponse));
});

// The first turn must call the tool and the second must not, so that the loop ends whatever the model is.
function graph(options) {
  const call = async ({ messages }) => {
    const tool_choice = messages.at(-1).type === "tool" ? "none" : "required";
    return { messages: [await llm.bindTools([lookUp], { tool_choice }).invoke(messages)] };
  };
  return new StateGraph(MessagesAnnotation)
    .addNode("model", call)
    .addNode("tools", new ToolNode([lookUp]))
    .addEdge("__start__", "model")
    .addConditionalEdges("model", ({ messages }) => (messages.at(-1).tool_calls?.length ? "tools" : "__end__"))
    .addEdge("tools", "model")
    .compile(options);
}

CLIENT.case("tools", async () => {
  const { messages } = await graph().invoke(QUESTION);
  assert.deepEqual(
    messages.map((message) => message.type),
    ["human", "ai", "tool", "ai"],
  );
  LookUp.parse(messages[1].tool_calls[0].args);
  assert.equal(messages[2].content, `${messages[1].tool_calls[0].args.name} is documented.`);
  return messages[2].content;
});

CLIENT.case("tools: streamed", async () => {
  const nodes = [];
  for await (const update of await graph().stream(QUESTION, { streamMode: "updates" }))
    nodes.push(...Object.keys(update));
  assert.deepEqual(nodes, ["model", "tools", "model"]);
  return nodes.join(", ");
});

CLIENT.case("memory", async () => {
  const saved = graph({ checkpointer: new MemorySaver() });
  const thread = { configurable: { thread_id: "one" } };
  await saved.invoke(QUESTION, thread);
  const { messages } = await saved.invoke(QUESTION, thread); // the calls and results of before go along
  assert.equal(messages.length, 8);
  return `${messages.length} messages`;
});

await CLIENT.main();
