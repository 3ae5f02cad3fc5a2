import { expect, test } from "vitest";
import { failureOf } from "../src/chat/model/failures";
import { type Chunk, ResponseState, tokensPerSecond } from "../src/chat/model/response";

const piece = (delta: NonNullable<Chunk["choices"]>[number]["delta"], tokens: number, index = 0): Chunk => ({
  choices: [{ index, delta, finish_reason: null }],
  usage: { prompt_tokens: 7, completion_tokens: tokens },
});

test("text, reasoning and times", () => {
  const state = new ResponseState(1, 10);
  state.add({ choices: [{ index: 0, delta: { content: "" } }] }, 10.1); // the role alone is no token
  state.add(piece({ reasoning_content: "hm" }, 1), 10.5);
  state.add(piece({ content: "a" }, 2), 11);
  state.add(piece({ content: "b" }, 3), 11.5);
  state.add({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] }, 12);
  expect(state.outputs[0]).toMatchObject({ content: "ab", reasoning: "hm", finish: "stop" });
  expect(state.stats()).toMatchObject({ ttft: 0.5, decode: 1, tokens: 3, promptTokens: 7, cachedTokens: null });
  expect(tokensPerSecond(state.stats())).toBe(2);
});

test("tokens that came at once have no speed", () => {
  const state = new ResponseState(1, 0);
  state.add(piece({ tool_calls: [{ index: 0, id: "c", function: { name: "f", arguments: '{"a"' } }] }, 20), 1);
  state.add(piece({ tool_calls: [{ index: 0, function: { arguments: ": 1}" } }] }, 20), 1.001);
  expect(state.outputs[0]?.toolCalls).toEqual([{ id: "c", name: "f", arguments: '{"a": 1}' }]);
  expect(tokensPerSecond(state.stats())).toBeNull();
});

test("outputs are kept apart, and probabilities with them", () => {
  const state = new ResponseState(2, 0);
  state.add(piece({ content: "x" }, 1, 1), 1);
  state.add(
    {
      choices: [
        {
          index: 0,
          delta: { content: "y" },
          logprobs: { content: [{ token: "y", logprob: -0.123456, top_logprobs: [{ token: "z", logprob: -2 }] }] },
        },
      ],
    },
    2,
  );
  expect(state.outputs.map((output) => output.content)).toEqual(["y", "x"]);
  expect(state.outputs[0]?.tokens).toEqual([{ text: "y", logprob: -0.1235, top: [["z", -2]] }]);
});

test("errors in words, with code and request id", async () => {
  const body = JSON.stringify({
    error: { message: "Too many.", type: "rate_limit_error", code: "rate_limited", param: null },
  });
  const failure = await failureOf(
    new Response(body, { status: 429, headers: { "retry-after": "3", "x-request-id": "req-1" } }),
  );
  expect(failure).toEqual({
    title: "Too many requests",
    message: "Too many. Try again in 3 s.",
    code: "rate_limited",
    param: null,
    status: 429,
    requestId: "req-1",
  });
  expect((await failureOf(new Response("<html>", { status: 599 }))).title).toContain("599");
  const large = JSON.stringify({ error: { message: "larger than the limit" } });
  expect((await failureOf(new Response(large, { status: 413 }))).message).toMatch(
    /^larger than the limit\. Send fewer or smaller images/,
  );
  expect((await failureOf(new Response("no.", { status: 400 }))).message).toBe("no.");
});
