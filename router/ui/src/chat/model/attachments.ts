/** Images that wait to be sent: those of the message that is being typed, one list for each conversation. */

import { announce } from "../../components/announce";
import { createStore } from "../../state/store";
import { conversations, find } from "./conversations";
import { attached, MAX_IMAGES } from "./images";
import type { AttachedImage } from "./types";

export interface Attachments {
  images: AttachedImage[];
  /** Files that are being looked at: a message waits for them. */
  reading: number;
  /** Why files were not taken, in words. */
  problem: string;
}

export const NONE: Attachments = { images: [], reading: 0, problem: "" };
/** Of so many files at once it is told why they are not taken. */
const MOST_TOLD = 3;

/** By conversation. */
export const attachments = createStore<ReadonlyMap<string, Attachments>>(new Map());

export const attachmentsOf = (id: string): Attachments => attachments.get().get(id) ?? NONE;

function update(id: string, to: (before: Attachments) => Attachments): void {
  if (find(id)) attachments.set(new Map(attachments.get()).set(id, to(attachmentsOf(id))));
}

/** Take files for the next message of a conversation, as many as it may have; what is amiss is told. */
export async function attach(id: string, files: File[]): Promise<void> {
  const { images, reading } = attachmentsOf(id);
  const taken = files.slice(0, Math.max(0, MAX_IMAGES - images.length - reading));
  update(id, (before) => ({ ...before, reading: before.reading + taken.length }));
  const results = await Promise.all(taken.map(attached));
  const added = results.filter((result) => typeof result !== "string");
  update(id, (before) => ({
    images: [...before.images, ...added],
    reading: before.reading - taken.length,
    problem: problemsOf(
      results.filter((result) => typeof result === "string"),
      files.length - taken.length,
    ),
  }));
  if (added.length) announce(`${added.map(({ name }) => name).join(", ")} attached`);
}

/** What is amiss with some files, and that so many more were left out. */
export function problemsOf(reasons: string[], left: number): string {
  const told = reasons.slice(0, MOST_TOLD);
  if (reasons.length > MOST_TOLD) told.push(`Of ${reasons.length - MOST_TOLD} more files the same holds.`);
  if (left) {
    const were = left === 1 ? "1 file was" : `${left} files were`;
    told.push(`A message has at most ${MAX_IMAGES} images, and ${were} left out: send more in another message.`);
  }
  return told.join(" ");
}

export function detach(id: string, image: AttachedImage): void {
  update(id, (before) => ({ ...before, images: before.images.filter((one) => one !== image), problem: "" }));
  announce(`${image.name} removed`);
}

/** Nothing waits any more: it was sent. */
export const clear = (id: string): void => update(id, () => NONE);

/** A conversation that is gone leaves no files behind. */
conversations.subscribe(() => {
  const before = attachments.get();
  const left = [...before].filter(([id]) => find(id));
  if (left.length < before.size) attachments.set(new Map(left));
});

/** Files of the clipboard. What is there as words and as their picture, as spreadsheets copy it, are words. */
export function pastedFiles({ types, files }: Pick<DataTransfer, "types" | "files">): File[] {
  return types.includes("text/plain") && types.includes("text/html") ? [] : [...files];
}
