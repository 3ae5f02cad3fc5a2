// Vercel's AI SDK by its provider for OpenAI-compatible servers, pointed at one by `baseURL`.

import assert from "node:assert/strict";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { z } from "zod";

import { API_KEY, BASE_URL, MODEL, TURN, client } from "./case.mjs";
import { generating } from "./shared/vercel.mjs";

const CLIENT = client("Vercel AI SDK", "ai");
const provider = createOpenAICompatible({
  name: "blade",
  baseURL: BASE_URL,
  apiKey: API_KEY,
  includeUsage: true, // asks for the usage in streams, too
  supportsStructuredOutputs: true, // sends the schema; it would ask for any JSON object otherwise
});
const model = provider(MODEL);

generating(CLIENT, model);

CLIENT.case("UI message stream", async () => {
  const result = ai.streamText({
    model,
    prompt: "What does len do?",
    temperature: 0,
    maxOutputTokens: 40,
    maxRetries: 0,
  });
  const lines = (await result.toUIMessageStreamResponse().text()).split("\n").filter((line) => line !== "");
  assert.equal(lines.at(-1), "data: [DONE]");
  const parts = lines.slice(0, -1).map((line) => JSON.parse(line.slice("data: ".length)));
  const kinds = parts.map(({ type }) => type).filter((type, i, all) => type !== all[i - 1]);
  assert.deepEqual(kinds, ["start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"]);
  const text = parts.map((part) => part.delta ?? "").join("");
  assert.match(text, /number of items/);
  return text;
});

CLIENT.case("agent", async () => {
  const agent = new ai.ToolLoopAgent({
    model,
    temperature: 0,
    maxOutputTokens: 60,
    tools: {
      look_up: ai.tool({
        description: "Looks a builtin up",
        inputSchema: z.object({ name: z.enum(["len", "print"]) }),
        execute: ({ name }) => `${name} is documented.`,
      }),
    },
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }), // so that the loop ends
  });
  const { steps } = await agent.generate({ prompt: "What does len do?" });
  assert.deepEqual(
    steps.map((step) => step.toolResults.length),
    [1, 0],
  );
  return steps[0].toolResults[0].output;
});

CLIENT.case("completions", async () => {
  const asked = {
    model: provider.completionModel(MODEL),
    prompt: TURN,
    temperature: 0,
    maxOutputTokens: 12,
    maxRetries: 0,
  };
  const { text } = await ai.generateText(asked);
  let joined = "";
  for await (const delta of ai.streamText(asked).textStream) joined += delta;
  assert.equal(joined, text);
  assert.notEqual(text, ""); // no more can be said: the SDK writes the prompt as a turn in a form of its own
  return JSON.stringify(text);
});

CLIENT.case("embeddings", async () => {
  const { embeddings, usage } = await ai.embedMany({
    model: provider.embeddingModel(MODEL),
    values: ["len", "len", "sorted"],
  });
  assert.ok(ai.cosineSimilarity(embeddings[0], embeddings[1]) > 0.999);
  assert.ok(usage.tokens > 0);
  return `${embeddings.length} of ${embeddings[0].length} numbers`;
});

await CLIENT.main();
