/** Images of messages: which files are taken, and how they are sent. */

import { bytes as size } from "../../state/format";
import type { AttachedImage } from "./types";

/** Of one message. */
export const MAX_IMAGES = 16;
export const MAX_IMAGE_BYTES = 20 * 2 ** 20;
/** Characters of a name that are kept. */
export const MAX_NAME = 100;
export const IMAGE_TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
export const FORMATS_IN_WORDS = "PNG, JPEG, WebP or GIF";

/** Bytes that tell the types apart. */
const HEAD = 12;

/** An image goes with the last message that has it: one that was stored or imported has no file. */
const files = new WeakMap<AttachedImage, Blob>();

/** The file of an image; null where the page has been loaded anew since, or it came from another browser. */
export const fileOf = (image: AttachedImage): Blob | null => files.get(image) ?? null;

/** A file that was there and cannot be read: it was moved or changed. */
export class UnreadableImage extends Error {}

/** The media type that a file's first bytes tell, whatever it is named; null where it is none that is taken. */
export function imageType(head: Uint8Array): string | null {
  const text = String.fromCharCode(...head.subarray(0, HEAD));
  if (text.startsWith("\x89PNG\r\n\x1a\n")) return "image/png";
  if (text.startsWith("\xff\xd8\xff")) return "image/jpeg";
  if (text.startsWith("GIF87a") || text.startsWith("GIF89a")) return "image/gif";
  return text.startsWith("RIFF") && text.startsWith("WEBP", 8) ? "image/webp" : null;
}

/** An image of this file, or in words why it is not taken. */
export async function attached(file: File): Promise<AttachedImage | string> {
  const name = file.name.slice(0, MAX_NAME) || "image";
  if (file.size > MAX_IMAGE_BYTES) {
    return `${name} has ${size(file.size)}, and an image may have ${size(MAX_IMAGE_BYTES)}: make it smaller.`;
  }
  let head: ArrayBuffer;
  try {
    head = await file.slice(0, HEAD).arrayBuffer();
  } catch {
    return `${name} cannot be read: is it a folder, or gone?`;
  }
  const type = imageType(new Uint8Array(head));
  if (type === null) return `${name} is not an image that can be sent: choose ${FORMATS_IN_WORDS}.`;
  const image = { name, type, bytes: file.size };
  files.set(image, file.type === type ? file : file.slice(0, file.size, type));
  return image;
}

/** A `data:` URL of each image whose file is there. Throws UnreadableImage. */
export async function dataUrls(images: AttachedImage[]): Promise<Map<AttachedImage, string>> {
  const urls = new Map<AttachedImage, string>();
  for (const image of new Set(images)) {
    const file = fileOf(image);
    if (file) urls.set(image, await dataUrl(image.name, file));
  }
  return urls;
}

function dataUrl(name: string, file: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () =>
      reject(new UnreadableImage(`${name} cannot be read any more: edit the message and remove it, or attach it to another.`));
    reader.readAsDataURL(file);
  });
}

/** What stands in code for the bytes, which would be megabytes. */
export const urlInCode = ({ name, type }: AttachedImage): string => `data:${type};base64,<${name}>`;
