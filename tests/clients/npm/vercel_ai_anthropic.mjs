// Vercel's AI SDK by its provider for Anthropic, pointed at a server's Messages API by `baseURL`.

import { createAnthropic } from "@ai-sdk/anthropic";

import { API_KEY, BASE_URL, MODEL, client } from "./case.mjs";
import { generating } from "./shared/vercel.mjs";

const CLIENT = client("Vercel AI SDK (Anthropic)", "@ai-sdk/anthropic");

generating(CLIENT, createAnthropic({ baseURL: BASE_URL, apiKey: API_KEY })(MODEL));

await CLIENT.main();
