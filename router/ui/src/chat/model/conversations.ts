/** The conversations of this browser, and the one that is shown. */

import { kept } from "../../state/browser_storage";
import { createStore } from "../../state/store";
import { idOf, load, parse, remove, save } from "./storage";
import { newConversation, newId } from "./tree";
import type { Conversation, Pane } from "./types";

const first = newConversation([""]);

/** The last updated first; one without a turn is not stored. */
export const conversations = createStore<Conversation[]>([first, ...load(kept)]);
export const currentId = createStore<string>(first.id);
/** Something the user should know of, in words. */
export const notice = createStore<string>("");

const SAVE_AFTER = 400; // milliseconds
const waiting = new Set<string>();
let timer: ReturnType<typeof setTimeout> | undefined;

export const find = (id: string): Conversation | undefined => conversations.get().find((one) => one.id === id);

/** Change one, and store it soon. */
export function change(id: string, to: (conversation: Conversation) => Conversation, touched = true): void {
  const list = conversations.get();
  const before = list.find((one) => one.id === id);
  if (!before) return;
  const changed = to(before);
  const after = touched ? { ...changed, updated: Date.now() / 1000 } : changed;
  const replaced = list.map((one) => (one.id === id ? after : one));
  conversations.set(touched ? replaced.sort((a, b) => b.updated - a.updated) : replaced);
  waiting.add(id);
  clearTimeout(timer);
  timer = setTimeout(flush, SAVE_AFTER);
}

export function changePane(id: string, index: number, to: (pane: Pane) => Pane, touched = true): void {
  change(id, (one) => ({ ...one, panes: one.panes.map((pane, at) => (at === index ? to(pane) : pane)) }), touched);
}

/** Whether anything was said in it. */
export const isEmpty = (conversation: Conversation): boolean =>
  conversation.panes.every((pane) => !Object.keys(pane.turns).length);

function flush(): void {
  for (const id of waiting) {
    const conversation = find(id);
    if (!conversation || isEmpty(conversation)) continue;
    // The one that is shown does not leave for another
    const others = conversations.get().filter((one) => !isEmpty(one) && one.id !== currentId.get());
    const left = save(kept, conversation, others);
    if (left === null) notice.set("This conversation is too large for the browser's storage: export it to keep it.");
    else if (left.length) {
      conversations.set(conversations.get().filter((one) => !left.includes(one.id)));
      notice.set(
        `The browser's storage is full: ${left.length === 1 ? "the oldest conversation was" : `the ${left.length} oldest conversations were`} deleted.`,
      );
    }
  }
  waiting.clear();
}
addEventListener("pagehide", flush);

/** Another tab stored or deleted one. What this tab has not stored yet is newer. */
addEventListener("storage", ({ key, newValue }) => {
  const id = key === null ? null : idOf(key);
  if (id === null || waiting.has(id) || id === currentId.get()) return;
  const stored = newValue === null ? null : parse(newValue);
  const rest = conversations.get().filter((one) => one.id !== id);
  conversations.set(stored ? [...rest, stored].sort((a, b) => b.updated - a.updated) : rest);
});

/** Begin another, with the models of the one shown. */
export function begin(): void {
  const shown = find(currentId.get());
  const empty = conversations.get().find(isEmpty);
  const next = empty ?? newConversation(shown?.panes.map((pane) => pane.model) ?? [""]);
  if (!empty) conversations.set([next, ...conversations.get()]);
  currentId.set(next.id);
}

export function discard(id: string): void {
  remove(kept, id);
  waiting.delete(id);
  const rest = conversations.get().filter((one) => one.id !== id);
  conversations.set(rest);
  if (currentId.get() === id) begin();
}

/**
 * Put imported ones beside those that are there, if they differ; one that has gone on since gets another id. Returns
 * how many.
 */
export function add(imported: Conversation[]): number {
  const known = new Set(conversations.get().map((one) => one.id));
  const list = imported
    .filter((one) => find(one.id)?.updated !== one.updated)
    .map((one) => {
      const added = known.has(one.id) ? { ...one, id: newId() } : one;
      known.add(added.id);
      return added;
    });
  conversations.set([...conversations.get(), ...list].sort((a, b) => b.updated - a.updated));
  for (const one of list) waiting.add(one.id);
  flush();
  const last = list[0];
  if (last) currentId.set(last.id);
  return list.length;
}
