// Vercel's AI SDK by its provider for OpenAI: its own choice, the Responses API, and the chat API.

import assert from "node:assert/strict";

import { createOpenAI } from "@ai-sdk/openai";
import { embed, generateText } from "ai";

import { API_KEY, BASE_URL, MODEL, client } from "./case.mjs";
import { generating } from "./shared/vercel.mjs";

const CLIENT = client("Vercel AI SDK (OpenAI)", "@ai-sdk/openai");
const provider = createOpenAI({ baseURL: BASE_URL, apiKey: API_KEY });

generating(CLIENT, provider(MODEL), "responses: ");
generating(CLIENT, provider.chat(MODEL), "chat: ");

CLIENT.case("responses: previousResponseId", async () => {
  const asked = { model: provider(MODEL), temperature: 0, maxOutputTokens: 40, maxRetries: 0 };
  const first = await generateText({ ...asked, prompt: "What does len do?" });
  const { responseId } = first.providerMetadata.openai;
  const next = await generateText({
    ...asked,
    prompt: "What does len do?",
    providerOptions: { openai: { previousResponseId: responseId } },
  });
  assert.ok(next.usage.inputTokens > first.usage.inputTokens);
  return next.text;
});

CLIENT.case("embeddings", async () => {
  const { embedding } = await embed({ model: provider.embedding(MODEL), value: "len" });
  assert.ok(embedding.every(Number.isFinite));
  return `${embedding.length} numbers`;
});

await CLIENT.main();
