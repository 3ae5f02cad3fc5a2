/** Requests that run, and what has come of them. */

import { announce } from "../../components/announce";
import { fetchWithKey } from "../../state/auth";
import { readEvents } from "../../state/sse";
import { createStore, type Store } from "../../state/store";
import { change, changePane, find } from "./conversations";
import { failureInStream, failureOf, lostConnection, unsendable } from "./failures";
import { dataUrls, UnreadableImage } from "./images";
import { body, requestFields } from "./request";
import { type Chunk, ResponseState } from "./response";
import { addTurn, newId, pathTo, replaceTurn, titleOf } from "./tree";
import type { AttachedImage, Conversation, Failure, Sent, Turn } from "./types";

/** Milliseconds between two pictures of an output that grows. */
const SHOW_EVERY = 40;

/** Turns that grow, by id: only their own component follows them. */
const live = new Map<string, Store<Turn>>();
const aborts = new Map<string, AbortController>();
/** `CONVERSATION/PANE` of what runs. */
export const running = createStore<ReadonlySet<string>>(new Set());

const place = (id: string, pane: number) => `${id}/${pane}`;
const fixed = createStore<Turn | null>(null);

/** What follows this turn while it grows; a store that never changes otherwise. */
export const liveTurn = (id: string): Store<Turn | null> => (live.get(id) as Store<Turn | null> | undefined) ?? fixed;

export const isRunning = (id: string, panes: number): boolean =>
  Array.from({ length: panes }, (_, pane) => place(id, pane)).some((name) => running.get().has(name));

/** What a user says. */
const userTurn = (parent: string | null, text: string, images: AttachedImage[]): Turn => ({
  id: newId(),
  parent,
  role: "user",
  content: text,
  created: Date.now() / 1000,
  ...(images.length > 0 && { images }),
});

/** Say something to all models of a conversation. Throws FieldError when a setting cannot be sent. */
export function say(conversation: Conversation, text: string, images: AttachedImage[] = []): void {
  for (const pane of conversation.panes) requestFields(pane.model, conversation.settings);
  change(conversation.id, (one) => ({
    ...one,
    title: one.title || titleOf(text.trim() || (images[0]?.name ?? "")),
    panes: one.panes.map((pane) => addTurn(pane, userTurn(pane.leaf, text, images))),
  }));
  conversation.panes.forEach((_, pane) => generate(conversation.id, pane));
}

/** Say something else in a turn's place: a branch beside it. Throws FieldError. */
export function sayInstead(
  conversation: Conversation,
  index: number,
  turn: Turn,
  text: string,
  images: AttachedImage[] = [],
): void {
  const pane = conversation.panes[index];
  if (!pane) return;
  requestFields(pane.model, conversation.settings);
  changePane(conversation.id, index, (one) => addTurn(one, userTurn(turn.parent, text, images)));
  generate(conversation.id, index);
}

/** Give the results of a turn's tool calls, and have the model go on. Throws FieldError. */
export function returnResults(conversation: Conversation, index: number, turn: Turn, results: string[]): void {
  const pane = conversation.panes[index];
  if (!pane) return;
  requestFields(pane.model, conversation.settings);
  changePane(conversation.id, index, (one) => {
    let next = one;
    let parent = turn.id;
    turn.toolCalls?.forEach((call, at) => {
      const result: Turn = {
        id: newId(),
        parent,
        role: "tool",
        content: results[at] ?? "",
        created: Date.now() / 1000,
        toolCallId: call.id,
      };
      next = addTurn(next, result);
      parent = result.id;
    });
    return next;
  });
  generate(conversation.id, index);
}

/** Another response in the place of this one. Throws FieldError. */
export function regenerate(conversation: Conversation, index: number, turn: Turn): void {
  const pane = conversation.panes[index];
  if (!pane) return;
  requestFields(pane.model, conversation.settings);
  changePane(conversation.id, index, (one) => ({ ...one, leaf: turn.parent }));
  generate(conversation.id, index);
}

/** Stop what runs in a conversation; what has come is kept. */
export function stop(id: string): void {
  for (const [name, abort] of aborts) if (name.startsWith(`${id}/`)) abort.abort();
}

/** The model's turn after the last one shown. */
function generate(id: string, index: number): void {
  const conversation = find(id);
  const pane = conversation?.panes[index];
  if (!conversation || !pane) return;
  const sent: Sent = { system: conversation.system, fields: requestFields(pane.model, conversation.settings) };
  const history = pathTo(pane, pane.leaf);
  const count = typeof sent.fields.n === "number" ? sent.fields.n : 1;
  const turns = Array.from({ length: count }, (): Turn => ({
    id: newId(),
    parent: pane.leaf,
    role: "assistant",
    content: "",
    created: Date.now() / 1000,
    model: pane.model,
    sent,
  }));
  for (const turn of turns) live.set(turn.id, createStore(turn));
  changePane(id, index, (one) => {
    const added = turns.reduce(addTurn, one);
    return { ...added, leaf: turns[0]?.id ?? added.leaf };
  });
  void run(id, index, turns, () => written(sent, history));
}

/** The body as it is sent. Throws UnreadableImage, or RangeError where it is longer than any text of the browser's. */
async function written(sent: Sent, history: Turn[]): Promise<string> {
  const urls = await dataUrls(history.flatMap((turn) => turn.images ?? []));
  return JSON.stringify(body(sent, history, (image) => urls.get(image) ?? null));
}

async function run(id: string, index: number, turns: Turn[], write: () => Promise<string>): Promise<void> {
  const name = place(id, index);
  const abort = new AbortController();
  aborts.set(name, abort);
  running.set(new Set([...running.get(), name]));
  const clock = () => performance.now() / 1000;
  const state = new ResponseState(turns.length, clock());
  let requestId: string | null = null;
  let failure: Failure | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const grown = (at: number): Turn => {
    const { content, reasoning, toolCalls, tokens, finish } = state.outputs[at]!;
    return {
      ...turns[at]!,
      content,
      stats: state.stats(),
      ...(reasoning && { reasoning }),
      ...(toolCalls.length && { toolCalls: toolCalls.filter(Boolean).map((call) => ({ ...call })) }),
      ...(tokens.length && { tokens: [...tokens] }),
      ...(finish && { finish }),
      ...(requestId && { requestId }),
    };
  };
  const show = () => {
    timer = undefined;
    turns.forEach((turn, at) => live.get(turn.id)?.set(grown(at)));
  };

  try {
    const response = await fetchWithKey("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: await write(),
      signal: abort.signal,
    });
    requestId = response.headers.get("x-request-id");
    if (!response.ok || !response.body) failure = await failureOf(response);
    else {
      let done = false;
      for await (const { data } of readEvents(response.body)) {
        if (data === "[DONE]") {
          done = true; // read on to the end: whoever leaves before looks to the router as if it had given up
          continue;
        }
        const chunk = JSON.parse(data) as Chunk;
        if (chunk.error) {
          failure = failureInStream(chunk.error, requestId);
          break;
        }
        state.add(chunk, clock());
        timer ??= setTimeout(show, SHOW_EVERY);
      }
      if (!done && !failure) failure = lostConnection(true, requestId);
    }
  } catch (error) {
    if (error instanceof UnreadableImage) failure = unsendable(error.message);
    else if (error instanceof RangeError) failure = unsendable("Its images are too large together: edit a message and remove some.");
    else if (!abort.signal.aborted) failure = lostConnection(state.stats().ttft !== null, requestId);
  }
  clearTimeout(timer);
  finish(
    id,
    turns.map((_, at) => ({
      ...grown(at),
      ...(failure && { failure }),
      ...(abort.signal.aborted && { finish: "stopped" }),
    })),
  );
  if (aborts.get(name) === abort) aborts.delete(name);
  running.set(new Set([...running.get()].filter((other) => other !== name)));
}

function finish(id: string, turns: Turn[]): void {
  // In all panes: one may have been added, with these turns, or removed meanwhile
  change(id, (one) => ({ ...one, panes: one.panes.map((pane) => turns.reduce(replaceTurn, pane)) }));
  for (const turn of turns) live.delete(turn.id);
  const turn = turns[0];
  if (!turn) return;
  if (turn.failure) announce(`${turn.failure.title}. ${turn.failure.message}`);
  else if (turn.finish === "stopped") announce("Stopped");
  else {
    const calls = turn.toolCalls?.map((call) => call.name).join(", ");
    announce(`${turn.model ?? "The model"}: ${turn.content.slice(0, 1500)}${calls ? ` calls ${calls}` : ""}`);
  }
}
