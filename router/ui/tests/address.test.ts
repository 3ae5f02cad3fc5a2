import { beforeEach, expect, test, vi } from "vitest";
import { newConversation } from "../src/chat/model/tree";
import { pane, turn } from "./support";

const stored = (id: string) => ({ ...newConversation([]), id, title: id, updated: 1, panes: [pane(turn("u", null))] });

let entries: Map<string, string>;
let hashChanged: (() => void)[];
let pushed: string[];

/** The page, opened at an address. */
async function open(hash: string) {
  vi.resetModules();
  vi.stubGlobal("location", { hash });
  const { conversations, currentId, begin, change, discard, notice } = await import("../src/chat/model/conversations");
  await import("../src/chat/model/address");
  return { conversations, currentId, begin, change, discard, notice };
}

function go(hash: string) {
  location.hash = hash;
  for (const listener of hashChanged) listener();
}

beforeEach(() => {
  hashChanged = [];
  pushed = [];
  entries = new Map(["a", "b/c"].map((id) => [`blade.chat.${id}`, JSON.stringify(stored(id))]));
  vi.stubGlobal("localStorage", {
    get length() {
      return entries.size;
    },
    key: (index: number) => [...entries.keys()][index] ?? null,
    getItem: (name: string) => entries.get(name) ?? null,
    setItem: (name: string, value: string) => entries.set(name, value),
    removeItem: (name: string) => entries.delete(name),
  });
  vi.stubGlobal("addEventListener", (name: string, listener: () => void) => {
    if (name === "hashchange") hashChanged.push(listener);
  });
  vi.stubGlobal("history", {
    pushState: (_: null, __: string, hash: string) => pushed.push((location.hash = hash)),
    replaceState: (_: null, __: string, hash: string) => void (location.hash = hash),
  });
});

test("a reload shows the conversation of the address", async () => {
  const { currentId, notice } = await open("#/chat/b%2Fc");
  expect(currentId.get()).toBe("b/c");
  expect(notice.get()).toBe("");
});

test("an address that names none of this browser's says so, and begins a new one", async () => {
  const { conversations, currentId, notice } = await open("#/chat/gone");
  expect(notice.get()).toContain("does not have the conversation");
  expect(conversations.get().find((one) => one.id === currentId.get())?.panes[0]?.leaf).toBeNull();
  expect(location.hash).toBe("#/chat");
});

test("the address follows the conversation that is shown, and Back leads to the one before", async () => {
  const { currentId, begin, change, discard } = await open("");
  expect(location.hash).toBe("");
  change(currentId.get(), (one) => ({ ...one, panes: [pane(turn("u", null))] }));
  const first = location.hash;
  expect(first).toBe(`#/chat/${currentId.get()}`);
  expect(pushed).toEqual([]); // a new chat with its first turn is the same place
  currentId.set("a");
  begin();
  expect(pushed).toEqual(["#/chat/a", "#/chat"]);
  go("#/chat/a");
  expect(currentId.get()).toBe("a");
  go("#/service");
  go("#/chat"); // the tab's link: the conversation is still there
  expect([location.hash, currentId.get()]).toEqual(["#/chat/a", "a"]);
  go("#/service");
  go(first);
  expect([location.hash, `#/chat/${currentId.get()}`]).toEqual([first, first]);
  discard(currentId.get());
  expect(location.hash).toBe("#/chat");
});
