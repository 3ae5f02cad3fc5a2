import { describe, expect, it } from "vitest";
import {
  age,
  bytes,
  count,
  DASH,
  duration,
  number,
  parseTime,
  percent,
  plainDuration,
  short,
} from "../src/state/format";

const spaces = (text: string): string => text.replace(/[\u00a0\u202f]/g, " ");

describe("numbers for people", () => {
  it("writes durations in the unit that fits", () => {
    const written = [0, 0.00084, 0.038, 0.9996, 1.237, 42.11, 200, 7500, 360000].map((each) => spaces(duration(each)));
    expect(written).toEqual([
      "0 ms",
      "840 µs",
      "38.0 ms",
      "1.00 s",
      "1.24 s",
      "42.1 s",
      "3 min 20 s",
      "2 h 5 min",
      "4 d 4 h",
    ]);
    expect([0.5, 2, 0.025].map((each) => spaces(plainDuration(each)))).toEqual(["500 ms", "2 s", "25 ms"]);
  });

  it("has a dash for what is not known", () => {
    expect([duration(null), number(null), percent(null), bytes(null), count(null), number(Number.NaN)]).toEqual(
      Array(6).fill(DASH),
    );
  });

  it("keeps three digits", () => {
    expect([0, 1.234, 36.44, 255.5, 1056, 1234567].map((each) => spaces(number(each)))).toEqual([
      "0",
      "1.23",
      "36.4",
      "256",
      "1 056",
      "1 234 567",
    ]);
    expect([0, 950, 12400, 3.1e6, 2e9].map(short)).toEqual(["0", "950", "12.4k", "3.1M", "2G"]);
  });

  it("writes shares and bytes", () => {
    expect([0, 0.004, 0.0666, 0.5, 1].map((each) => spaces(percent(each)))).toEqual([
      "0 %",
      "0.4 %",
      "6.7 %",
      "50 %",
      "100 %",
    ]);
    expect([0, 1023, 1536, 16381470720].map((each) => spaces(bytes(each)))).toEqual([
      "0 B",
      "1023 B",
      "1.5 KiB",
      "15.3 GiB",
    ]);
  });

  it("tells how long ago", () => {
    expect([0.4, 59.9, 61, 7300, 200000].map(age)).toEqual(["now", "59 s ago", "1 min ago", "2 h ago", "2 d ago"]);
    expect(parseTime("2026-11-29T08:00:12Z")).toBe(Date.UTC(2026, 10, 29, 8, 0, 12) / 1000);
    expect([parseTime("yesterday"), parseTime(""), parseTime(null)]).toEqual([null, null, null]);
  });
});
