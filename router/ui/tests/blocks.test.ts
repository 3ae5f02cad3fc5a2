import { expect, test } from "vitest";
import { Blocks } from "../src/chat/model/blocks";

const TEXT = `# Title

A paragraph
of two lines.

- one
- two

  still two

| a | b |
|---|---|
| 1 | 2 |

\`\`\`python
def f():

    return 1
\`\`\`

1. x
2. y

The end.`;

test("a text that grew has the blocks of the whole text", () => {
  const whole = new Blocks().of(TEXT);
  expect(whole.length).toBe(7);
  expect(whole[4]?.code).toEqual({ text: "def f():\n\n    return 1", language: "python" });
  for (const step of [1, 3, 7]) {
    const blocks = new Blocks();
    let last = blocks.of("");
    for (let end = step; end < TEXT.length + step; end += step) last = blocks.of(TEXT.slice(0, end));
    expect(last, `steps of ${step}`).toEqual(whole);
  }
});

test("blocks before the last two are the same objects while the text grows", () => {
  const blocks = new Blocks();
  const before = blocks.of(TEXT);
  const after = blocks.of(`${TEXT} And more.\n\nNew.`);
  expect(after[0]).toBe(before[0]);
  expect(after[4]).toBe(before[4]);
});

test("another text begins anew", () => {
  const blocks = new Blocks();
  blocks.of(TEXT);
  expect(blocks.of("other").map((block) => block.raw)).toEqual(["other"]);
});
