// LangChain.js's chat model for OpenAI, pointed at a server by `configuration.baseURL`.

import assert from "node:assert/strict";

import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { StringOutputParser } from "@langchain/core/output_parsers";
import { ChatPromptTemplate } from "@langchain/core/prompts";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";

import { API_KEY, BASE_URL, MODEL, TURN, client } from "./case.mjs";

process.env.LANGSMITH_TRACING = "false"; // it would send traces to its maker

const CLIENT = client("LangChain.js", "@langchain/openai");
const POINTED = { model: MODEL, apiKey: API_KEY, configuration: { baseURL: BASE_URL }, maxRetries: 0 };
const QUESTION = "What does len do?";

const chat = (fields = {}) => new ChatOpenAI({ ...POINTED, temperature: 0, maxTokens: 100, ...fields });

const Builtin = z.object({
  name: z.string().max(8).describe("as one writes it"),
  kind: z.enum(["function", "class"]),
  arity: z.number().int().min(0).max(9),
  note: z.string().max(8).nullable(),
});
const LookUp = z.object({ name: z.enum(["len", "print", "sorted"]), section: z.number().int().min(1).max(3) });
const lookUp = tool(({ name }) => `${name} is documented.`, {
  name: "look_up",
  description: "Looks a builtin up",
  schema: LookUp,
});

CLIENT.case("basic", async () => {
  const answer = await chat().invoke(QUESTION);
  assert.match(answer.text, /number of items/);
  assert.equal(answer.response_metadata.finish_reason, "stop");
  const { input_tokens, output_tokens, total_tokens } = answer.usage_metadata;
  assert.equal(input_tokens + output_tokens, total_tokens);
  return answer.text;
});

CLIENT.case("chain", async () => {
  const prompt = ChatPromptTemplate.fromMessages([["user", "What does {name} do?"]]);
  const chain = prompt.pipe(chat()).pipe(new StringOutputParser());
  const answers = await chain.batch([{ name: "len" }, { name: "sorted" }]);
  assert.match(answers[0], /number of items/);
  assert.match(answers[1], /list/);
  return answers.join(" ");
});

CLIENT.case("stream", async () => {
  const model = chat();
  const whole = await model.invoke(QUESTION);
  let chunks = 0;
  let joined;
  for await (const chunk of await model.stream(QUESTION)) {
    joined = joined === undefined ? chunk : joined.concat(chunk);
    chunks += 1;
  }
  assert.equal(joined.text, whole.text);
  assert.equal(joined.usage_metadata.output_tokens, whole.usage_metadata.output_tokens);
  return `${chunks} chunks: ${joined.text}`;
});

for (const method of ["jsonSchema", "functionCalling"]) {
  CLIENT.case(`structured: ${method}`, async () => {
    const model = chat({ maxTokens: 200 });
    const structured = model.withStructuredOutput(Builtin, { name: "builtin", method, strict: true });
    return JSON.stringify(Builtin.parse(await structured.invoke(QUESTION)));
  });
}

CLIENT.case("tools", async () => {
  const answer = await chat().bindTools([lookUp], { tool_choice: "required" }).invoke(QUESTION);
  assert.equal(answer.tool_calls.length, 1);
  assert.equal(answer.invalid_tool_calls.length, 0);
  const [call] = answer.tool_calls;
  LookUp.parse(call.args);
  const result = await lookUp.invoke(call);
  assert.ok(result instanceof ToolMessage);
  const told = [new HumanMessage(QUESTION), answer, result];
  const next = await chat({ maxTokens: 20 }).bindTools([lookUp], { tool_choice: "none" }).invoke(told);
  assert.equal(next.tool_calls.length, 0);
  return `${JSON.stringify(call.args)}: ${result.content}`;
});

CLIENT.case("tools: streamed", async () => {
  const model = chat().bindTools([lookUp], { tool_choice: "look_up" });
  let joined;
  for await (const chunk of await model.stream(QUESTION)) joined = joined === undefined ? chunk : joined.concat(chunk);
  assert.equal(joined.tool_calls.length, 1);
  assert.equal(joined.tool_calls[0].name, "look_up");
  return JSON.stringify(LookUp.parse(joined.tool_calls[0].args));
});

CLIENT.case("responses", async () => {
  const model = chat({ useResponsesApi: true });
  const answer = await model.invoke(QUESTION);
  assert.match(answer.text, /number of items/);
  let text = "";
  for await (const chunk of await model.stream(QUESTION)) text += chunk.text;
  assert.equal(text, answer.text);
  const calling = await model.bindTools([lookUp], { tool_choice: "look_up" }).invoke(QUESTION);
  LookUp.parse(calling.tool_calls[0].args);
  return `${text} ${JSON.stringify(calling.tool_calls[0].args)}`;
});

CLIENT.case("completions", async () => {
  const model = new OpenAI({ ...POINTED, temperature: 0, maxTokens: 12 });
  const whole = await model.invoke(TURN);
  let text = "";
  for await (const chunk of await model.stream(TURN)) text += chunk;
  assert.equal(text, whole);
  assert.match(text, /number of items/);
  return JSON.stringify(text);
});

CLIENT.case("embeddings", async () => {
  const embeddings = new OpenAIEmbeddings({ ...POINTED });
  const [first, second] = await embeddings.embedDocuments(["len", "sorted"]);
  const again = await embeddings.embedQuery("len");
  assert.equal(first.length, second.length);
  first.forEach((value, i) => assert.ok(Math.abs(value - again[i]) < 1e-2));
  return `${first.length} numbers`;
});

await CLIENT.main();
