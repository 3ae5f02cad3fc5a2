import { addTurn } from "../src/chat/model/tree";
import type { Pane, Turn } from "../src/chat/model/types";

export const turn = (
  id: string,
  parent: string | null,
  role: Turn["role"] = "user",
  more: Partial<Turn> = {},
): Turn => ({
  id,
  parent,
  role,
  content: `text of ${id}`,
  created: 1,
  ...more,
});

export function pane(...turns: Turn[]): Pane {
  return turns.reduce((sum, one) => addTurn(sum, one), { model: "m", turns: {}, leaf: null } as Pane);
}

/** How each type of image begins. */
export const PNG = new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
export const JPEG = new Uint8Array([0xff, 0xd8, 0xff, 0xe0]);

/** The browser's, which Node has not; a blob named `gone` has no bytes any more. */
export class FileReader {
  result = "";
  onload = () => {};
  onerror = () => {};
  readAsDataURL(blob: Blob): void {
    if ((blob as File).name === "gone") return void setTimeout(this.onerror);
    void blob.arrayBuffer().then((bytes) => {
      this.result = `data:${blob.type};base64,${Buffer.from(bytes).toString("base64")}`;
      this.onload();
    });
  }
}
