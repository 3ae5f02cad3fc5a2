// Anthropic's own library for JavaScript, pointed at a server by `baseURL`, to which it adds /v1 itself.

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

import { API_KEY, MODEL, ROOT_URL, client } from "./case.mjs";

const CLIENT = client("@anthropic-ai/sdk", "@anthropic-ai/sdk");
const anthropic = new Anthropic({ baseURL: ROOT_URL, apiKey: API_KEY, maxRetries: 0 });
const QUESTION = { role: "user", content: "What does len do?" };
const ASKED = { model: MODEL, max_tokens: 40, temperature: 0, messages: [QUESTION] };

const LookUp = z.object({ name: z.enum(["len", "print", "sorted"]), section: z.number().int().min(1).max(3) });
const TOOL = {
  name: "look_up",
  description: "Looks a builtin up",
  input_schema: {
    type: "object",
    properties: {
      name: { type: "string", enum: ["len", "print", "sorted"] },
      section: { type: "integer", minimum: 1, maximum: 3 },
    },
    required: ["name", "section"],
  },
};
const FORCED = { type: "tool", name: "look_up" };

CLIENT.case("basic", async () => {
  const answer = await anthropic.messages.create(ASKED);
  assert.equal(answer.type, "message");
  assert.equal(answer.role, "assistant");
  assert.deepEqual(
    answer.content.map((block) => block.type),
    ["text"],
  );
  assert.match(answer.content[0].text, /number of items/);
  assert.equal(answer.stop_reason, "end_turn");
  assert.ok(answer.usage.input_tokens > 0 && answer.usage.output_tokens > 0);
  assert.match(answer._request_id, /./); // of the header request-id
  return answer.content[0].text;
});

CLIENT.case("count_tokens", async () => {
  const { input_tokens } = await anthropic.messages.countTokens({ model: MODEL, messages: [QUESTION] });
  const { usage } = await anthropic.messages.create(ASKED);
  const read = usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0);
  assert.equal(input_tokens, read);
  return `${input_tokens} tokens`;
});

CLIENT.case("stream", async () => {
  const whole = await anthropic.messages.create(ASKED);
  const kinds = [];
  let text = "";
  for await (const event of await anthropic.messages.create({ ...ASKED, stream: true })) {
    if (event.type !== "ping" && event.type !== kinds.at(-1)) kinds.push(event.type);
    if (event.type === "content_block_delta") text += event.delta.text;
  }
  assert.equal(text, whole.content[0].text);
  assert.deepEqual(kinds, [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
  ]);
  return text;
});

CLIENT.case("stream: helper", async () => {
  const deltas = [];
  const stream = anthropic.messages.stream(ASKED).on("text", (delta) => deltas.push(delta));
  const answer = await stream.finalMessage();
  assert.equal(deltas.join(""), answer.content[0].text);
  assert.equal(answer.stop_reason, "end_turn");
  assert.ok(answer.usage.output_tokens > 0);
  return `${deltas.length} deltas: ${answer.content[0].text}`;
});

CLIENT.case("stop sequences", async () => {
  const answer = await anthropic.messages.create({ ...ASKED, stop_sequences: ["number"] });
  assert.equal(answer.stop_reason, "stop_sequence");
  assert.equal(answer.stop_sequence, "number");
  assert.ok(!answer.content[0].text.includes("number"));
  return answer.content[0].text;
});

CLIENT.case("tools", async () => {
  const asked = { ...ASKED, max_tokens: 100, tools: [TOOL] };
  const answer = await anthropic.messages.create({ ...asked, tool_choice: { type: "any" } });
  assert.equal(answer.stop_reason, "tool_use");
  const call = answer.content.at(-1);
  assert.equal(call.type, "tool_use");
  assert.equal(call.name, "look_up");
  LookUp.parse(call.input);
  const result = { type: "tool_result", tool_use_id: call.id, content: "It is documented." };
  const next = await anthropic.messages.create({
    ...asked,
    messages: [QUESTION, { role: "assistant", content: answer.content }, { role: "user", content: [result] }],
    tool_choice: { type: "none" },
  });
  assert.deepEqual([...new Set(next.content.map((block) => block.type))], ["text"]);
  return JSON.stringify(call.input);
});

CLIENT.case("tools: streamed", async () => {
  const snapshots = [];
  const stream = anthropic.messages
    .stream({ ...ASKED, max_tokens: 100, tools: [TOOL], tool_choice: FORCED })
    .on("inputJson", (_, snapshot) => snapshots.push(snapshot));
  const answer = await stream.finalMessage();
  assert.equal(answer.stop_reason, "tool_use");
  const call = answer.content.at(-1);
  assert.deepEqual(snapshots.at(-1), call.input);
  return JSON.stringify(LookUp.parse(call.input));
});

CLIENT.case("tools: runner", async () => {
  const calls = [];
  const tool = betaZodTool({
    name: "look_up",
    description: "Looks a builtin up",
    inputSchema: LookUp,
    run: (input) => {
      calls.push(input);
      return `${input.name} is documented.`;
    },
  });
  const runner = anthropic.beta.messages.toolRunner({
    ...ASKED,
    max_tokens: 100,
    tools: [tool],
    tool_choice: FORCED,
    max_iterations: 2, // the call is forced in every turn, so that the loop has no end of its own
  });
  const turns = [];
  for await (const message of runner) turns.push(message.stop_reason);
  assert.deepEqual(turns, ["tool_use", "tool_use"]);
  assert.equal(calls.length, 2);
  assert.deepEqual(runner.params.messages.map(({ role }) => role).slice(0, 3), ["user", "assistant", "user"]);
  return JSON.stringify(calls[0]);
});

CLIENT.case("structured: zod", async () => {
  const Builtin = z.object({ name: z.enum(["len", "print"]), kind: z.enum(["function", "class"]) });
  const answer = await anthropic.messages.parse({
    ...ASKED,
    max_tokens: 200,
    output_config: { format: zodOutputFormat(Builtin) },
  });
  return JSON.stringify(Builtin.parse(answer.parsed_output));
});

CLIENT.case("errors", async () => {
  const wrong = anthropic.messages.create({ ...ASKED, model: "nobody" });
  await assert.rejects(wrong, (error) => {
    assert.ok(error instanceof Anthropic.NotFoundError);
    assert.equal(error.error.error.type, "not_found_error");
    return true;
  });
  const long = anthropic.messages.create({ ...ASKED, messages: [{ role: "user", content: "len ".repeat(9000) }] });
  await assert.rejects(long, (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, "invalid_request_error");
    return true;
  });
  return "NotFoundError, BadRequestError";
});

CLIENT.case("models", async () => {
  const ids = [];
  for await (const model of anthropic.models.list()) ids.push(model.id);
  assert.ok(ids.includes(MODEL));
  return ids.join(", ");
});

await CLIENT.main();
