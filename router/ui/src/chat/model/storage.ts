/** Conversations in the browser's storage, one entry each, bounded: the oldest leave when there is no room. */

import type { BrowserStorage } from "../../state/browser_storage";
import { GROUPS } from "./fields";
import { MAX_IMAGES, MAX_NAME, IMAGE_TYPES } from "./images";
import { newConversation } from "./tree";
import type { AttachedImage, Conversation, Failure, Pane, Sent, Stats, Token, ToolCall, Turn } from "./types";

const PREFIX = "blade.chat.";
export const MAX_CONVERSATIONS = 100;
/** Characters of all entries together: browsers give about 5 million. */
export const MAX_CHARACTERS = 4_000_000;

/** All that are stored, the last updated first. */
export function load(storage: BrowserStorage): Conversation[] {
  const found: Conversation[] = [];
  for (let index = 0; index < storage.length; index++) {
    const name = storage.key(index);
    if (name === null || idOf(name) === null) continue;
    const conversation = parse(storage.getItem(name));
    if (conversation) found.push(conversation);
  }
  return found.sort((a, b) => b.updated - a.updated);
}

/** The conversation that an entry's name stands for; null for other entries. */
export const idOf = (name: string): string | null => (name.startsWith(PREFIX) ? name.slice(PREFIX.length) : null);

/** A stored conversation; null for one of another version, or broken: it is not shown, and not deleted. */
export function parse(text: string | null): Conversation | null {
  try {
    return readConversation(JSON.parse(text ?? ""));
  } catch {
    return null;
  }
}

/**
 * Store one; returns the ids of those that had to leave for it, or null when it does not fit alone: then none has left.
 */
export function save(storage: BrowserStorage, conversation: Conversation, all: Conversation[]): string[] | null {
  const text = JSON.stringify(conversation);
  if (text.length > MAX_CHARACTERS) return null;
  const others = all.filter(({ id }) => id !== conversation.id).sort((a, b) => a.updated - b.updated);
  const size = (id: string) => storage.getItem(PREFIX + id)?.length ?? 0;
  let total = others.reduce((sum, { id }) => sum + size(id), text.length);
  let count = others.length + 1;
  const left = new Map<string, string | null>();
  const drop = (): boolean => {
    const oldest = others.shift();
    if (!oldest) return false;
    total -= size(oldest.id);
    count -= 1;
    left.set(oldest.id, storage.getItem(PREFIX + oldest.id));
    storage.removeItem(PREFIX + oldest.id);
    return true;
  };
  while ((total > MAX_CHARACTERS || count > MAX_CONVERSATIONS) && drop());
  for (;;) {
    try {
      storage.setItem(PREFIX + conversation.id, text);
      return [...left.keys()];
    } catch {
      if (drop()) continue;
      for (const [id, stored] of left) if (stored !== null) storage.setItem(PREFIX + id, stored);
      return null;
    }
  }
}

export function remove(storage: BrowserStorage, id: string): void {
  storage.removeItem(PREFIX + id);
}

export function exported(conversations: Conversation[]): string {
  return JSON.stringify({ kind: "bladellm.conversations", version: 1, conversations }, null, 1);
}

/** Conversations of an exported file. Throws an Error that says what is wrong. */
export function imported(text: string): Conversation[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is not JSON: ${(error as Error).message}`);
  }
  const list =
    isObject(file) && file.kind === "bladellm.conversations" && file.version === 1 ? file.conversations : null;
  if (!Array.isArray(list)) throw new Error("The file has no conversations that this page exported.");
  return list.map((item: unknown, index) => {
    const conversation = readConversation(item);
    if (!conversation) throw new Error(`Conversation ${index + 1} of the file is not complete.`);
    return conversation;
  });
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value: unknown): value is string => typeof value === "string";
const isNumber = (value: unknown): value is number => typeof value === "number";
const isParent = (value: unknown): value is string | null => value === null || isText(value);

/**
 * A conversation of somebody else's making: what the page relies on is checked, and null returned where it is amiss.
 * Fields that are not known are left out, so that they are not stored and exported either.
 */
export function readConversation(value: unknown): Conversation | null {
  if (!isObject(value) || !isText(value.id) || !value.id || !Array.isArray(value.panes)) return null;
  const panes = value.panes.slice(0, 2).map(readPane);
  if (!panes.length || !panes.every((pane) => pane !== null)) return null;
  const settings = isObject(value.settings) ? value.settings : {};
  const values = isObject(settings.values) ? settings.values : {};
  const now = Date.now() / 1000;
  return {
    ...newConversation([]),
    id: value.id,
    title: isText(value.title) ? value.title.slice(0, 200) : "",
    created: Number(value.created) || now,
    updated: Number(value.updated) || now,
    system: isText(value.system) ? value.system : "",
    settings: {
      values: Object.fromEntries(
        Object.entries(values).filter((entry): entry is [string, string] => isKnown(entry[0]) && isText(entry[1])),
      ),
      tools: isText(settings.tools) ? settings.tools : "",
      tokens: settings.tokens === true,
    },
    panes,
  };
}

const NAMES = new Set(GROUPS.flatMap((group) => group.fields.map((field) => field.name)));
const isKnown = (name: string) => NAMES.has(name) || /^(format(\..+)?|tool_choice|parallel_tool_calls)$/.test(name);

function readPane(value: unknown): Pane | null {
  if (!isObject(value) || !isText(value.model) || !isParent(value.leaf) || !isObject(value.turns)) return null;
  const turns: Record<string, Turn> = {};
  for (const [id, item] of Object.entries(value.turns)) {
    const turn = readTurn(item);
    if (!turn || turn.id !== id || id === "__proto__") return null;
    turns[id] = turn;
  }
  if (value.leaf !== null && !Object.hasOwn(turns, value.leaf)) return null;
  return ends(turns) ? { model: value.model, turns, leaf: value.leaf } : null;
}

const ROLES: Turn["role"][] = ["user", "assistant", "tool"];

function readTurn(value: unknown): Turn | null {
  if (!isObject(value) || !isText(value.id) || !isParent(value.parent) || !isText(value.content)) return null;
  const role = ROLES.find((one) => one === value.role);
  const calls = value.toolCalls ?? [];
  const tokens = value.tokens ?? [];
  const images = value.images ?? [];
  if (!role || !Array.isArray(calls) || !calls.every(isCall)) return null;
  if (!Array.isArray(tokens) || !tokens.every(isToken)) return null;
  if (!Array.isArray(images) || images.length > MAX_IMAGES || !images.every(isImage)) return null;
  const turn: Turn = {
    id: value.id,
    parent: value.parent,
    role,
    content: value.content,
    created: Number(value.created) || 0,
    ...(images.length > 0 && { images: images.map(readImage) }),
    ...(calls.length > 0 && { toolCalls: calls }),
    ...(tokens.length > 0 && { tokens }),
    ...(isObject(value.stats) && { stats: readStats(value.stats) }),
    ...(isObject(value.failure) && { failure: readFailure(value.failure) }),
    ...(isSent(value.sent) && { sent: value.sent }),
  };
  for (const name of ["model", "reasoning", "finish", "requestId", "toolCallId"] as const) {
    const text = value[name];
    if (isText(text)) turn[name] = text;
  }
  // A page that was closed while a response came kept none of it but its beginning
  if (role === "assistant" && !turn.finish && !turn.failure) turn.finish = "stopped";
  return turn;
}

function readStats(value: Record<string, unknown>): Stats {
  const of = (name: keyof Stats) => (isNumber(value[name]) ? value[name] : null);
  return {
    ttft: of("ttft"),
    decode: of("decode"),
    decodeTokens: of("decodeTokens"),
    promptTokens: of("promptTokens"),
    cachedTokens: of("cachedTokens"),
    tokens: of("tokens"),
  };
}

function readFailure(value: Record<string, unknown>): Failure {
  const of = (name: "code" | "param" | "requestId") => (isText(value[name]) ? value[name] : null);
  return {
    title: isText(value.title) ? value.title : "The request failed",
    message: isText(value.message) ? value.message : "",
    code: of("code"),
    param: of("param"),
    requestId: of("requestId"),
    status: isNumber(value.status) ? value.status : null,
  };
}

const isImage = (value: unknown): value is AttachedImage =>
  isObject(value) && isText(value.name) && isText(value.type) && IMAGE_TYPES.includes(value.type) && isNumber(value.bytes);
const readImage = ({ name, type, bytes }: AttachedImage): AttachedImage => ({
  name: name.slice(0, MAX_NAME),
  type,
  bytes,
});
const isSent = (value: unknown): value is Sent => isObject(value) && isText(value.system) && isObject(value.fields);
const isCall = (value: unknown): value is ToolCall =>
  isObject(value) && isText(value.id) && isText(value.name) && isText(value.arguments);
const isToken = (value: unknown): value is Token =>
  isObject(value) &&
  isText(value.text) &&
  isNumber(value.logprob) &&
  Array.isArray(value.top) &&
  value.top.every((other: unknown) => Array.isArray(other) && isText(other[0]) && isNumber(other[1]));

/** Every turn's parents are there, and lead to a first one. */
function ends(turns: Record<string, Turn>): boolean {
  return Object.values(turns).every((turn) => {
    let steps = 0;
    for (let at: Turn | undefined = turn; at.parent !== null; steps++) {
      at = turns[at.parent];
      if (!at || steps > Object.keys(turns).length) return false;
    }
    return true;
  });
}
