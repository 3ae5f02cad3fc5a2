import { expect, test } from "vitest";
import { EventParser } from "../src/state/sse";

const TEXT = 'event: snapshot\ndata: {"a":1}\n\n: keep-alive\n\ndata: one\r\ndata: two\r\n\r\ndata:[DONE]\n\n';
const EVENTS = [
  { event: "snapshot", data: '{"a":1}' },
  { event: "message", data: "one\ntwo" },
  { event: "message", data: "[DONE]" },
];

test("events come out alike however the text is cut", () => {
  for (let size = 1; size <= TEXT.length; size++) {
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < TEXT.length; at += size) events.push(...parser.push(TEXT.slice(at, at + size)));
    expect(events, `pieces of ${size}`).toEqual(EVENTS);
  }
});

test("an event that has no empty line behind it has not come yet", () => {
  expect(new EventParser().push("data: half")).toEqual([]);
});
