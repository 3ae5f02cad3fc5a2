/** Markdown by blocks: what came before the last block of a text that grows is not read again. */

import { type Token, type TokensList, lexer } from "marked";

export interface Block {
  raw: string;
  /** The whole text of a fenced or indented block of code, with its language. */
  code: { text: string; language: string } | null;
}

export class Blocks {
  private done: Block[] = [];
  private length = 0;
  private text = "";

  /** The blocks of a text; quick where it only grew since the last call. */
  of(text: string): Block[] {
    if (!text.startsWith(this.text)) {
      this.done = [];
      this.length = 0;
    }
    this.text = text;
    const tokens: TokensList | Token[] = lexer(text.slice(this.length));
    const open: Block[] = [];
    for (const token of tokens) if (token.type !== "space" && token.type !== "def") open.push(toBlock(token));
    // The last block may still grow, and the one before it: a table's head is a paragraph until its rule has come
    const settled = tokens.slice(0, -2);
    const keep = settled.filter((token) => token.type !== "space" && token.type !== "def").length;
    const shown = [...this.done, ...open];
    const raw = settled.reduce((sum, token) => sum + token.raw.length, 0);
    // The lexer writes tabs and line ends anew: only where it did not are its lengths those of the text
    if (settled.map((token) => token.raw).join("") === text.slice(this.length, this.length + raw)) {
      this.done.push(...open.slice(0, keep));
      this.length += raw;
    }
    return shown;
  }
}

function toBlock(token: Token): Block {
  if (token.type === "code") {
    return {
      raw: token.raw,
      code: { text: String(token.text), language: String(token.lang ?? "").split(/\s/)[0] ?? "" },
    };
  }
  return { raw: token.raw, code: null };
}
