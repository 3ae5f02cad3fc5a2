import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { shownTurns, siblings } from "../src/chat/model/tree";
import type { AttachedImage, Conversation } from "../src/chat/model/types";
import { FileReader, PNG } from "./support";

const encoder = new TextEncoder();
const chunk = (content: string, finish: string | null = null) =>
  `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason: finish }] })}\n\n`;

/** A response of these pieces; without `[DONE]` in them it is cut off. */
const stream = (...pieces: string[]) =>
  new Response(
    new ReadableStream({
      start(out) {
        for (const piece of pieces) out.enqueue(encoder.encode(piece));
        out.close();
      },
    }),
  );
const refusal = () =>
  new Response(JSON.stringify({ error: { message: "The engine is gone.", code: "engine_unavailable" } }), {
    status: 503,
    headers: { "retry-after": "7", "x-request-id": "r-1" },
  });
const reply = (text: string) => stream(chunk(text), chunk("", "stop"), "data: [DONE]\n\n");

let respond: (body: any, signal: AbortSignal) => Response | Promise<Response>;
let bodies: any[];

beforeEach(() => {
  vi.useFakeTimers();
  bodies = [];
  vi.stubGlobal("addEventListener", () => {});
  vi.stubGlobal("FileReader", FileReader);
  vi.stubGlobal("fetch", async (_: string, { body, signal }: { body: string; signal: AbortSignal }) => {
    bodies.push(JSON.parse(body));
    return respond(bodies.at(-1), signal);
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** A new conversation with these models. */
async function begin(...names: string[]) {
  vi.resetModules();
  const stored = await import("../src/chat/model/conversations");
  const generation = await import("../src/chat/model/generation");
  const { attached } = await import("../src/chat/model/images");
  const { announced } = await import("../src/components/announce");
  const id = stored.currentId.get();
  stored.change(id, (one) => ({ ...one, panes: names.map((model) => ({ model, turns: {}, leaf: null })) }));
  const now = (): Conversation => stored.find(id)!;
  const last = (pane: number) => shownTurns(now().panes[pane]!).at(-1)!;
  return { ...stored, ...generation, announced, attached, id, now, last, settle: () => vi.advanceTimersByTimeAsync(100) };
}

test("of two models one fails, and the other one's response is whole", async () => {
  const { say, now, last, settle, isRunning, announced, id } = await begin("good", "bad");
  respond = ({ model }) => (model === "good" ? reply("Hello.") : refusal());
  say(now(), "Hi");
  expect(isRunning(id, 2)).toBe(true);
  await settle();
  expect(isRunning(id, 2)).toBe(false);
  expect(last(0)).toMatchObject({ role: "assistant", content: "Hello.", finish: "stop" });
  expect(last(0).failure).toBeUndefined();
  expect(last(1).failure).toMatchObject({
    status: 503,
    code: "engine_unavailable",
    message: "The engine is gone. Try again in 7 s.",
    requestId: "r-1",
  });
  expect(announced.get()).toMatch(/good: Hello\./);
  expect(announced.get()).toMatch(/The service is not ready or too busy\./);
  respond = () => reply("Again.");
  say(now(), "Still there?");
  await settle();
  expect(bodies.at(-1).messages.map((one: any) => one.role)).toEqual(["user", "user"]); // the failure is not sent along
  expect(last(1).content).toBe("Again.");
});

test("a stream that ends before its end keeps what came, and says so", async () => {
  const { say, now, last, settle } = await begin("m");
  respond = () => stream(chunk("Half of"));
  say(now(), "Hi");
  await settle();
  expect(last(0)).toMatchObject({ content: "Half of", failure: { title: "The response broke off" } });
});

test("stopped by the user is no failure", async () => {
  const { say, stop, now, last, settle, id } = await begin("m");
  respond = (_, signal) =>
    new Response(
      new ReadableStream({
        start(out) {
          out.enqueue(encoder.encode(chunk("So far")));
          signal.addEventListener("abort", () => out.error(signal.reason));
        },
      }),
    );
  say(now(), "Hi");
  await settle();
  stop(id);
  await settle();
  expect(last(0)).toMatchObject({ content: "So far", finish: "stopped" });
  expect(last(0).failure).toBeUndefined();
});

test("what is regenerated or edited is a branch, and what was there stays", async () => {
  const { say, regenerate, sayInstead, now, last, settle } = await begin("m");
  respond = () => reply("One.");
  say(now(), "Hi");
  await settle();
  respond = () => reply("Two.");
  regenerate(now(), 0, last(0));
  await settle();
  expect(siblings(now().panes[0]!, last(0)).map((turn) => turn.content)).toEqual(["One.", "Two."]);
  sayInstead(now(), 0, shownTurns(now().panes[0]!)[0]!, "Hello");
  await settle();
  expect(bodies.at(-1).messages).toEqual([{ role: "user", content: "Hello" }]);
  expect(Object.keys(now().panes[0]!.turns)).toHaveLength(5);
});

test("images are sent with each message after theirs, until an edit leaves them out", async () => {
  const { say, sayInstead, attached, now, last, settle } = await begin("m");
  const image = (await attached(new File([PNG], "a.png"))) as AttachedImage;
  respond = () => reply("A cat.");
  say(now(), " ", [image]);
  await settle();
  expect(now().title).toBe("a.png");
  const part = { type: "image_url", image_url: { url: "data:image/png;base64,iVBORw0KGgo=" } };
  expect(bodies.at(-1).messages).toEqual([{ role: "user", content: [part] }]);
  say(now(), "Sure?");
  await settle();
  expect(bodies.at(-1).messages.map((one: any) => one.content)).toEqual([[part], "A cat.", "Sure?"]);
  sayInstead(now(), 0, shownTurns(now().panes[0]!)[0]!, "Hello", []);
  await settle();
  expect(bodies.at(-1).messages).toEqual([{ role: "user", content: "Hello" }]);
  expect(last(0).content).toBe("A cat.");
});

test("an image that cannot be read any more is a failure that says so, and nothing is sent", async () => {
  const { say, attached, now, last, settle, isRunning, id } = await begin("m");
  const file = new File([PNG], "gone", { type: "image/png" });
  say(now(), "What is it?", [(await attached(file)) as AttachedImage]);
  await settle();
  expect(bodies).toEqual([]);
  expect(last(0).failure?.title).toBe("The request was not sent");
  expect(last(0).failure?.message).toMatch(/^gone cannot be read any more/);
  expect(isRunning(id, 1)).toBe(false);
});

test("a setting that cannot be sent leaves the conversation as it is", async () => {
  const { say, change, now, id } = await begin("m");
  change(id, (one) => ({ ...one, settings: { ...one.settings, values: { top_p: "2" } } }));
  expect(() => say(now(), "Hi")).toThrow("Top p: at most 1");
  expect(bodies).toEqual([]);
  expect(now().panes[0]!.leaf).toBeNull();
});
