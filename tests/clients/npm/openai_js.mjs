// OpenAI's own library for JavaScript, pointed at a server by `baseURL`.

import assert from "node:assert/strict";

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { API_KEY, BASE_URL, MODEL, TURN, client } from "./case.mjs";

const CLIENT = client("openai (JavaScript)", "openai");
const openai = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 });
const QUESTION = "What does len do?";
const ASKED = { model: MODEL, messages: [{ role: "user", content: QUESTION }], temperature: 0, max_tokens: 40 };

const Builtin = z.object({
  name: z.string().max(8),
  kind: z.enum(["function", "class"]),
  arity: z.number().int().min(0).max(9),
  aliases: z.array(z.string().max(4)).max(2),
  returns: z.union([z.object({ type: z.enum(["int", "str"]) }), z.null()]),
});
const LookUp = z.object({ name: z.enum(["len", "print", "sorted"]), section: z.number().int().min(1).max(3) });

CLIENT.case("basic", async () => {
  const answer = await openai.chat.completions.create(ASKED);
  const { message, finish_reason } = answer.choices[0];
  assert.match(message.content, /number of items/);
  assert.equal(message.refusal, null);
  assert.equal(finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  assert.match(answer._request_id, /./); // of the header x-request-id
  return message.content;
});

CLIENT.case("stream", async () => {
  const whole = await openai.chat.completions.create(ASKED);
  const stream = await openai.chat.completions.create({
    ...ASKED,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(chunks.at(-1).choices.length, 0);
  assert.deepEqual(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  return `${chunks.length} chunks: ${text}`;
});

CLIENT.case("stream: helper", async () => {
  const deltas = [];
  const stream = openai.chat.completions.stream(ASKED).on("content", (delta) => deltas.push(delta));
  const content = await stream.finalContent();
  assert.equal(deltas.join(""), content);
  assert.match(content, /number of items/);
  return content;
});

CLIENT.case("structured: zod", async () => {
  const response_format = zodResponseFormat(Builtin, "builtin");
  const answer = await openai.chat.completions.parse({ ...ASKED, max_tokens: 200, response_format });
  const { message, finish_reason } = answer.choices[0];
  assert.equal(finish_reason, "stop");
  return JSON.stringify(Builtin.parse(message.parsed));
});

CLIENT.case("structured: zod, streamed", async () => {
  const response_format = zodResponseFormat(Builtin, "builtin");
  const snapshots = [];
  const stream = openai.chat.completions
    .stream({ ...ASKED, max_tokens: 200, response_format })
    .on("content.delta", ({ parsed }) => snapshots.push(parsed));
  const answer = await stream.finalChatCompletion();
  assert.deepEqual(snapshots.at(-1), answer.choices[0].message.parsed);
  return JSON.stringify(Builtin.parse(answer.choices[0].message.parsed));
});

const lookUp = (calls) =>
  zodFunction({
    name: "look_up",
    description: "Looks a builtin up",
    parameters: LookUp,
    function: (parameters) => {
      calls.push(LookUp.parse(parameters));
      return `${parameters.name} is documented.`;
    },
  });
const FORCED = { type: "function", function: { name: "look_up" } };

CLIENT.case("tools: zod", async () => {
  const tools = [lookUp([])];
  const answer = await openai.chat.completions.parse({
    ...ASKED,
    max_tokens: 100,
    tools,
    tool_choice: "required",
    parallel_tool_calls: false,
  });
  const { message, finish_reason } = answer.choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.equal(message.tool_calls.length, 1);
  const [call] = message.tool_calls;
  assert.equal(call.function.name, "look_up");
  const parsed = LookUp.parse(call.function.parsed_arguments);
  const next = await openai.chat.completions.create({
    ...ASKED,
    messages: [...ASKED.messages, message, { role: "tool", tool_call_id: call.id, content: "It is documented." }],
    tools,
    tool_choice: "none",
  });
  assert.notEqual(next.choices[0].message.content, null);
  return JSON.stringify(parsed);
});

CLIENT.case("tools: runTools", async () => {
  const calls = [];
  const asked = { ...ASKED, max_tokens: 100, tools: [lookUp(calls)], tool_choice: FORCED };
  const runner = openai.chat.completions.runTools(asked); // ends after a call that was named
  assert.equal(await runner.finalFunctionToolCallResult(), `${calls[0].name} is documented.`);
  assert.equal(calls.length, 1);
  return JSON.stringify(calls[0]);
});

CLIENT.case("tools: runTools, streamed", async () => {
  const calls = [];
  const asked = { ...ASKED, max_tokens: 100, stream: true, tools: [lookUp(calls)], tool_choice: FORCED };
  const pieces = [];
  const runner = openai.chat.completions
    .runTools(asked)
    .on("chunk", (chunk) => pieces.push(chunk.choices[0]?.delta.tool_calls?.[0].function?.arguments ?? ""));
  assert.equal(await runner.finalFunctionToolCallResult(), `${calls[0].name} is documented.`);
  assert.deepEqual(JSON.parse(pieces.join("")), calls[0]);
  return JSON.stringify(calls[0]);
});

CLIENT.case("responses", async () => {
  const asked = { model: MODEL, input: QUESTION, temperature: 0, max_output_tokens: 40 };
  const answer = await openai.responses.create(asked);
  assert.equal(answer.status, "completed");
  assert.match(answer.output_text, /number of items/);
  const next = await openai.responses.create({ ...asked, previous_response_id: answer.id });
  assert.equal(next.previous_response_id, answer.id);
  assert.ok(next.usage.input_tokens > answer.usage.input_tokens);
  return answer.output_text;
});

CLIENT.case("responses: stream", async () => {
  const asked = { model: MODEL, input: QUESTION, temperature: 0, max_output_tokens: 40 };
  const stream = openai.responses.stream(asked);
  const kinds = [];
  let text = "";
  for await (const event of stream) {
    assert.equal(event.sequence_number, kinds.length);
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(kinds[0], "response.created");
  assert.equal(kinds.at(-1), "response.completed");
  assert.equal((await stream.finalResponse()).output_text, text);
  assert.match(text, /number of items/);
  return `${kinds.length} events: ${text}`;
});

CLIENT.case("responses: zod", async () => {
  const answer = await openai.responses.parse({
    model: MODEL,
    input: QUESTION,
    temperature: 0,
    max_output_tokens: 200,
    text: { format: zodTextFormat(Builtin, "builtin") },
  });
  return JSON.stringify(Builtin.parse(answer.output_parsed));
});

CLIENT.case("completions", async () => {
  const asked = { model: MODEL, prompt: TURN, temperature: 0, max_tokens: 12 };
  const whole = await openai.completions.create(asked);
  let text = "";
  for await (const chunk of await openai.completions.create({ ...asked, stream: true })) {
    text += chunk.choices[0]?.text ?? "";
  }
  assert.equal(text, whole.choices[0].text);
  assert.match(text, /number of items/);
  assert.equal(whole.usage.completion_tokens, 12);
  return JSON.stringify(text);
});

const distance = (one, other) => Math.max(...one.map((value, i) => Math.abs(value - other[i])));

CLIENT.case("embeddings", async () => {
  const input = ["len", "len", "sorted"];
  const asked = await openai.embeddings.create({ model: MODEL, input }); // as base64, decoded by the library
  const floats = await openai.embeddings.create({ model: MODEL, input, encoding_format: "float" });
  assert.deepEqual(
    asked.data.map((item) => item.index),
    [0, 1, 2],
  );
  for (const [i, { embedding }] of floats.data.entries()) {
    assert.equal(asked.data[i].embedding.length, embedding.length);
    embedding.forEach((value, j) => assert.ok(Math.abs(asked.data[i].embedding[j] - value) < 1e-2));
  }
  const [same, other] = [1, 2].map((i) => distance(floats.data[0].embedding, floats.data[i].embedding));
  assert.ok(same < 1e-2 && other > 2 * same, `${same} ${other}`);
  return `${floats.data[0].embedding.length} numbers`;
});

CLIENT.case("errors", async () => {
  const wrong = openai.chat.completions.create({ ...ASKED, model: "nobody" });
  await assert.rejects(wrong, (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  const long = openai.chat.completions.create({ ...ASKED, messages: [{ role: "user", content: "len ".repeat(9000) }] });
  await assert.rejects(
    long,
    (error) => error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded",
  );
  return "NotFoundError, BadRequestError";
});

CLIENT.case("models", async () => {
  const ids = [];
  for await (const model of openai.models.list()) ids.push(model.id);
  assert.ok(ids.includes(MODEL));
  assert.equal((await openai.models.retrieve(MODEL)).id, MODEL);
  return ids.join(", ");
});

await CLIENT.main();
