/** Conversations in the browser's storage, one entry each, bounded: the oldest leave when there is no room. */

import { GROUPS } from "./fields";
import { newConversation } from "./tree";
import type { Conversation, Pane, Turn } from "./types";

const PREFIX = "blade.chat.";
export const MAX_CONVERSATIONS = 100;
/** Characters of all entries together: browsers give about 5 million. */
export const MAX_CHARACTERS = 4_000_000;

export interface Storage {
  readonly length: number;
  key(index: number): string | null;
  getItem(name: string): string | null;
  setItem(name: string, value: string): void;
  removeItem(name: string): void;
}

/** All that are stored, the last updated first. */
export function load(storage: Storage): Conversation[] {
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

/** Store one; returns the ids of those that had to leave for it, or null when it does not fit alone. */
export function save(storage: Storage, conversation: Conversation, all: Conversation[]): string[] | null {
  const text = JSON.stringify(conversation);
  if (text.length > MAX_CHARACTERS) return null;
  const others = all.filter(({ id }) => id !== conversation.id).sort((a, b) => a.updated - b.updated);
  const size = (id: string) => storage.getItem(PREFIX + id)?.length ?? 0;
  let total = others.reduce((sum, { id }) => sum + size(id), text.length);
  let count = others.length + 1;
  const left: string[] = [];
  const drop = (): boolean => {
    const oldest = others.shift();
    if (!oldest) return false;
    total -= size(oldest.id);
    count -= 1;
    storage.removeItem(PREFIX + oldest.id);
    left.push(oldest.id);
    return true;
  };
  while ((total > MAX_CHARACTERS || count > MAX_CONVERSATIONS) && drop());
  for (;;) {
    try {
      storage.setItem(PREFIX + conversation.id, text);
      return left;
    } catch {
      if (!drop()) return null;
    }
  }
}

export function remove(storage: Storage, id: string): void {
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
const isParent = (value: unknown) => value === null || isText(value);

/**
 * A conversation of somebody else's making: what the page relies on is looked at, and null returned where it is amiss.
 */
export function readConversation(value: unknown): Conversation | null {
  if (!isObject(value) || !isText(value.id) || !Array.isArray(value.panes) || !value.panes.length) return null;
  const panes = value.panes.slice(0, 2);
  if (!panes.every(isPane)) return null;
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
    panes: panes.map(ended),
  };
}

/** A page that was closed while a response came kept none of it but its beginning. */
function ended(pane: Pane): Pane {
  const turns = Object.entries(pane.turns).map(([id, turn]): [string, Turn] => [
    id,
    turn.role === "assistant" && !turn.finish && !turn.failure ? { ...turn, finish: "stopped" } : turn,
  ]);
  return { ...pane, turns: Object.fromEntries(turns) };
}

const NAMES = new Set(GROUPS.flatMap((group) => group.fields.map((field) => field.name)));
const isKnown = (name: string) => NAMES.has(name) || /^(format(\..+)?|tool_choice|parallel_tool_calls)$/.test(name);

function isPane(value: unknown): value is Pane {
  if (!isObject(value) || !isText(value.model) || !isParent(value.leaf) || !isObject(value.turns)) return false;
  const turns = value.turns;
  const known = Object.entries(turns).every(([id, turn]) => isTurn(turn) && turn.id === id);
  return known && (value.leaf === null || (value.leaf as string) in turns) && ends(turns as Record<string, Turn>);
}

function isTurn(value: unknown): value is Turn {
  return (
    isObject(value) &&
    isText(value.id) &&
    isParent(value.parent) &&
    isText(value.content) &&
    ["user", "assistant", "tool"].includes(value.role as string) &&
    (value.toolCalls === undefined || (Array.isArray(value.toolCalls) && value.toolCalls.every(isCall))) &&
    (value.tokens === undefined || (Array.isArray(value.tokens) && value.tokens.every(isToken)))
  );
}

const isCall = (value: unknown) => isObject(value) && isText(value.id) && isText(value.name) && isText(value.arguments);
const isToken = (value: unknown) =>
  isObject(value) &&
  isText(value.text) &&
  typeof value.logprob === "number" &&
  Array.isArray(value.top) &&
  value.top.every((other: unknown) => Array.isArray(other) && isText(other[0]) && typeof other[1] === "number");

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
