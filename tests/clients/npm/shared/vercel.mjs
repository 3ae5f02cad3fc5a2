// The cases of Vercel's AI SDK that are one for each of its providers.

import assert from "node:assert/strict";

import { generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand between the lines of the cases

const Builtin = z.object({
  name: z.string().max(8),
  kind: z.enum(["function", "class"]),
  arity: z.number().int().min(0).max(9),
  note: z.string().max(8).nullable(),
});
const LookUp = z.object({ name: z.enum(["len", "print", "sorted"]), section: z.number().int().min(1).max(3) });
const tools = {
  look_up: tool({
    description: "Looks a builtin up",
    inputSchema: LookUp,
    execute: ({ name }) => `${name} is documented.`,
  }),
};
// The first step must call the tool and the second must not, so that the loop ends whatever the model is.
const LOOP = {
  tools,
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
};

// Add the cases to a client for a model of a provider, their names begun by `prefix`.
export function generating(client, model, prefix = "") {
  const asked = { model, prompt: "What does len do?", temperature: 0, maxOutputTokens: 200, maxRetries: 0 };

  client.case(`${prefix}basic`, async () => {
    const { text, finishReason, usage } = await generateText(asked);
    assert.match(text, /number of items/);
    assert.equal(finishReason, "stop");
    assert.equal(usage.totalTokens, usage.inputTokens + usage.outputTokens);
    return text;
  });

  client.case(`${prefix}stream`, async () => {
    const { text } = await generateText(asked);
    const result = streamText(asked);
    const deltas = [];
    for await (const delta of result.textStream) deltas.push(delta);
    assert.equal(deltas.join(""), text);
    assert.equal(await result.finishReason, "stop");
    assert.ok((await result.usage).outputTokens > 0);
    return `${deltas.length} deltas: ${text}`;
  });

  client.case(`${prefix}conversation`, async () => {
    const user = { role: "user", content: asked.prompt };
    const first = await generateText(asked);
    const messages = [user, ...first.response.messages, user];
    const next = await generateText({ ...asked, prompt: undefined, messages, maxOutputTokens: 8 });
    assert.ok(next.usage.inputTokens >= 2 * first.usage.inputTokens + first.usage.outputTokens - 1);
    return `${next.usage.inputTokens} tokens of input`;
  });

  client.case(`${prefix}structured`, async () => {
    const { output } = await generateText({ ...asked, output: Output.object({ schema: Builtin }) });
    return JSON.stringify(Builtin.parse(output));
  });

  client.case(`${prefix}structured: generateObject`, async () => {
    const { object, finishReason } = await generateObject({ ...asked, schema: Builtin });
    assert.equal(finishReason, "stop");
    const chosen = await generateObject({ ...asked, output: "enum", enum: ["function", "class"] });
    assert.ok(["function", "class"].includes(chosen.object));
    return `${JSON.stringify(Builtin.parse(object))} ${chosen.object}`;
  });

  client.case(`${prefix}structured: streamObject`, async () => {
    const result = streamObject({ ...asked, schema: Builtin });
    const partials = [];
    for await (const partial of result.partialObjectStream) partials.push(partial);
    assert.deepEqual(partials.at(-1), await result.object);
    return `${partials.length} partial objects: ${JSON.stringify(await result.object)}`;
  });

  client.case(`${prefix}tools`, async () => {
    const { steps } = await generateText({ ...asked, ...LOOP, maxOutputTokens: 60 });
    assert.equal(steps.length, 2);
    assert.equal(steps[0].finishReason, "tool-calls");
    const [{ input, output }] = steps[0].toolResults;
    assert.equal(output, `${LookUp.parse(input).name} is documented.`);
    assert.equal(steps[1].toolCalls.length, 0);
    return `${JSON.stringify(input)}: ${output}`;
  });

  client.case(`${prefix}tools: streamed`, async () => {
    const result = streamText({ ...asked, ...LOOP, maxOutputTokens: 60 });
    const kinds = [];
    let typed = "";
    for await (const part of result.fullStream) {
      assert.notEqual(part.type, "error", String(part.error));
      if (part.type !== kinds.at(-1)) kinds.push(part.type);
      if (part.type === "tool-input-delta") typed += part.delta;
    }
    const [{ input }] = (await result.steps)[0].toolCalls;
    assert.deepEqual(JSON.parse(typed), LookUp.parse(input));
    const calling = kinds.filter((kind) => kind.startsWith("tool-"));
    assert.deepEqual(calling, ["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result"]);
    return `${calling.join(", ")}: ${typed}`;
  });
}
