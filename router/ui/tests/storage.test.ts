import { expect, test } from "vitest";
import {
  exported,
  imported,
  load,
  MAX_CONVERSATIONS,
  readConversation,
  save,
} from "../src/chat/model/storage";
import { attached, fileOf } from "../src/chat/model/images";
import type { BrowserStorage } from "../src/state/browser_storage";
import { newConversation } from "../src/chat/model/tree";
import type { Conversation } from "../src/chat/model/types";
import { PNG, pane, turn } from "./support";

class Memory implements BrowserStorage {
  readonly entries = new Map<string, string>();
  constructor(private readonly room = Number.POSITIVE_INFINITY) {}
  get length() {
    return this.entries.size;
  }
  key = (index: number) => [...this.entries.keys()][index] ?? null;
  getItem = (name: string) => this.entries.get(name) ?? null;
  removeItem = (name: string) => void this.entries.delete(name);
  setItem(name: string, value: string) {
    const others = [...this.entries]
      .filter(([other]) => other !== name)
      .reduce((sum, [, text]) => sum + text.length, 0);
    if (others + value.length > this.room) throw new Error("QuotaExceededError");
    this.entries.set(name, value);
  }
}

const conversation = (id: string, updated: number, text = "hello"): Conversation => ({
  ...newConversation([]),
  id,
  updated,
  title: id,
  panes: [pane(turn("u", null, "user", { content: text }), turn("a", "u", "assistant", { finish: "stop" }))],
});

test("what is stored is loaded, the last updated first", () => {
  const storage = new Memory();
  const all = [conversation("a", 1), conversation("b", 2)];
  for (const one of all) expect(save(storage, one, all)).toEqual([]);
  storage.setItem("blade.chat.broken", "{");
  storage.setItem("other", "1");
  expect(load(storage)).toEqual([all[1], all[0]]);
});

test("the oldest leave when the browser's room is used up", () => {
  const storage = new Memory(3500);
  const all = [
    conversation("a", 1, "x".repeat(1000)),
    conversation("b", 2, "x".repeat(1000)),
    conversation("c", 3, "x".repeat(1000)),
  ];
  expect(save(storage, all[0]!, all)).toEqual([]);
  expect(save(storage, all[1]!, all)).toEqual([]);
  expect(save(storage, all[2]!, all)).toEqual(["a"]);
  expect(load(storage).map((one) => one.id)).toEqual(["c", "b"]);
  expect(save(new Memory(10), all[0]!, [all[0]!])).toBeNull();
});

test("none leaves for one that does not fit all the same", () => {
  const storage = new Memory(3500);
  const small = conversation("small", 1);
  const large = conversation("large", 2, "x".repeat(5000));
  expect(save(storage, small, [small, large])).toEqual([]);
  expect(save(storage, large, [small, large])).toBeNull();
  expect(load(storage)).toEqual([small]);
});

test("so many at most", () => {
  const storage = new Memory();
  const all = Array.from({ length: MAX_CONVERSATIONS + 1 }, (_, at) => conversation(`c${at}`, at));
  for (const one of all.slice(0, -1)) save(storage, one, all.slice(0, -1));
  expect(save(storage, all.at(-1)!, all)).toEqual(["c0"]);
});

test("an export is imported as it was", () => {
  const all = [conversation("a", 1)];
  expect(imported(exported(all))).toEqual(all);
  expect(() => imported("no")).toThrow("not JSON");
  expect(() => imported("{}")).toThrow("no conversations");
});

test("of images the names are stored, and no bytes", async () => {
  const storage = new Memory();
  const image = await attached(new File([PNG, "x".repeat(100_000)], "a.png"));
  if (typeof image === "string") throw new Error(image);
  const one: Conversation = { ...conversation("a", 1), panes: [pane(turn("u", null, "user", { images: [image] }))] };
  expect(save(storage, one, [one])).toEqual([]);
  expect(storage.getItem("blade.chat.a")!.length).toBeLessThan(1000);
  const stored = load(storage)[0]!.panes[0]!.turns.u!.images!;
  expect(stored).toEqual([{ name: "a.png", type: "image/png", bytes: 100_008 }]);
  expect(fileOf(image)?.size).toBe(100_008);
  expect(fileOf(stored[0]!)).toBeNull();
});

test("a file that would break the page is refused", () => {
  const good = conversation("a", 1);
  const of = (change: (one: any) => void) => {
    const copy = structuredClone(good);
    change(copy);
    return readConversation(copy);
  };
  expect(of(() => {})).toEqual(good);
  expect(of((one) => (one.panes = []))).toBeNull();
  expect(of((one) => (one.panes[0].leaf = "gone"))).toBeNull();
  expect(of((one) => (one.panes[0].turns.u.parent = "a"))).toBeNull(); // a circle
  expect(of((one) => (one.panes[0].turns.a.parent = "gone"))).toBeNull();
  expect(of((one) => (one.panes[0].turns.a.content = 1))).toBeNull();
  const image = { name: "n".repeat(500), type: "image/png", bytes: 8, evil: 1 };
  const images = (list: unknown) => of((one) => (one.panes[0].turns.u.images = list))?.panes[0]?.turns.u?.images;
  expect(images([image])).toEqual([{ name: "n".repeat(100), type: "image/png", bytes: 8 }]);
  for (const wrong of [{}, [1], [{ ...image, type: "image/svg+xml" }], Array(17).fill(image)])
    expect(of((one) => (one.panes[0].turns.u.images = wrong))).toBeNull();
  expect(of((one) => (one.settings.values = { temperature: "1", evil: "2", n: 3 }))?.settings.values).toEqual({
    temperature: "1",
  });
});

test("what is shown of a turn has the shape that the page expects", () => {
  const file: any = structuredClone(conversation("a", 1));
  Object.assign(file.panes[0].turns.a, {
    finish: { evil: 1 },
    reasoning: 5,
    model: ["m"],
    requestId: 1,
    stats: { ttft: "soon", tokens: 3 },
    failure: { title: {}, status: "500" },
    sent: { system: "", fields: null },
    evil: "kept by nobody",
  });
  expect(readConversation(file)?.panes[0]?.turns.a).toEqual({
    ...turn("a", "u", "assistant"),
    stats: { ttft: null, decode: null, decodeTokens: null, promptTokens: null, cachedTokens: null, tokens: 3 },
    failure: {
      title: "The request failed",
      message: "",
      code: null,
      param: null,
      status: null,
      requestId: null,
    },
  });
});

test("names of every object are no turns", () => {
  const file: any = structuredClone(conversation("a", 1));
  file.panes[0].leaf = "constructor";
  expect(readConversation(file)).toBeNull();
});

test("a response that the page's end cut is marked", () => {
  const cut = structuredClone(conversation("a", 1));
  delete cut.panes[0]!.turns.a!.finish;
  expect(readConversation(cut)?.panes[0]?.turns.a?.finish).toBe("stopped");
});
