import { beforeEach, expect, test, vi } from "vitest";
import { attached, fileOf, imageType, MAX_IMAGE_BYTES, MAX_IMAGES } from "../src/chat/model/images";
import type { AttachedImage } from "../src/chat/model/types";
import { JPEG, PNG } from "./support";

const text = (value: string) => Uint8Array.from(value, (character) => character.charCodeAt(0));

beforeEach(() => {
  vi.stubGlobal("addEventListener", () => {});
});

/** The page's lists of images, and its conversation. */
async function begin() {
  vi.resetModules();
  const stored = await import("../src/chat/model/conversations");
  const waiting = await import("../src/chat/model/attachments");
  const id = stored.currentId.get();
  const names = () => waiting.attachmentsOf(id).images.map((image) => image.name);
  return { ...stored, ...waiting, id, names, problem: () => waiting.attachmentsOf(id).problem };
}

const pngs = (count: number) => Array.from({ length: count }, (_, at) => new File([PNG], `${at}.png`));

test.each([
  ["image/png", PNG],
  ["image/jpeg", JPEG],
  ["image/gif", text("GIF89a12")],
  ["image/webp", text("RIFF\x10\x00\x00\x00WEBPVP8 ")],
  [null, text("RIFF\x10\x00\x00\x00WAVEfmt ")],
  [null, text("<svg xmlns=''>")],
  [null, PNG.subarray(0, 7)],
  [null, text("")],
])("a file is %s by its first bytes", (type, head) => {
  expect(imageType(head)).toBe(type);
});

test("a file's type is that of its bytes, whatever its name says", async () => {
  const image = (await attached(new File([JPEG], "photo.png", { type: "image/png" }))) as AttachedImage;
  expect(image).toEqual({ name: "photo.png", type: "image/jpeg", bytes: 4 });
  expect(fileOf(image)?.type).toBe("image/jpeg");
  expect(await attached(new File(["words"], "notes.png", { type: "image/png" }))).toBe(
    "notes.png is not an image that can be sent: choose PNG, JPEG, WebP or GIF.",
  );
});

test("an image may be as large as the limit, and no larger", async () => {
  const of = (size: number) => attached(new File([PNG, new Uint8Array(size - PNG.length)], "large.png"));
  expect(await of(MAX_IMAGE_BYTES)).toMatchObject({ bytes: MAX_IMAGE_BYTES });
  expect(await of(MAX_IMAGE_BYTES + 2 ** 20)).toBe(
    "large.png has 21\u00a0MiB, and an image may have 20\u00a0MiB: make it smaller.",
  );
});

test("a message has so many images at most, also when files come in two lots at once", async () => {
  const { attach, id, names, problem, detach, attachmentsOf } = await begin();
  await Promise.all([attach(id, pngs(10)), attach(id, pngs(10))]);
  expect(names()).toHaveLength(MAX_IMAGES);
  expect(problem()).toBe(
    "A message has at most 16 images, and 4 files were left out: send more in another message.",
  );
  await attach(id, pngs(1));
  expect(problem()).toContain("1 file was left out");
  detach(id, attachmentsOf(id).images[0]!);
  expect(problem()).toBe("");
  await attach(id, pngs(1));
  expect(names()).toHaveLength(MAX_IMAGES);
  expect(problem()).toBe("");
});

test("what is no image is told, the others are taken", async () => {
  const { attach, id, names, problem, attachmentsOf } = await begin();
  const words = (name: string) => new File(["words"], name);
  await attach(id, [words("a"), ...pngs(1), words("b"), words("c"), words("d"), words("e")]);
  expect(names()).toEqual(["0.png"]);
  expect(problem()).toMatch(/^a is not .* b is not .* c is not .* Of 2 more files the same holds\.$/);
  expect(attachmentsOf(id).reading).toBe(0);
});

test("what waits goes with its message, or its conversation", async () => {
  const { attach, id, names, clear, discard, attachments } = await begin();
  await attach(id, pngs(2));
  clear(id);
  expect(names()).toEqual([]);
  await attach(id, pngs(2));
  discard(id);
  expect(attachments.get().has(id)).toBe(false);
  await attach(id, pngs(1));
  expect(attachments.get().has(id)).toBe(false);
});

test("a table on the clipboard is pasted as its words, a picture as a file", async () => {
  const { pastedFiles } = await begin();
  const files = [new File([PNG], "image.png")] as unknown as FileList;
  const of = (...types: string[]) => pastedFiles({ types, files });
  expect(of("text/plain", "text/html", "Files")).toEqual([]);
  expect(of("text/html", "Files")).toHaveLength(1);
  expect(of("Files")).toHaveLength(1);
  expect(of("text/plain", "Files")).toHaveLength(1); // a file that was copied, and its name
});
