/** The decisions on the number of engines, which the status holds as text. */
import { parseTime } from "../../state/format";

export interface Change {
  time: number | null;
  from: number | null;
  to: number | null;
  /** The numbers behind it, or the whole text where it is not as expected. */
  why: string;
}

const FORM = /^(\S+) (\d+) -> (\d+): (.*)$/s;

/** `2026-11-29T08:00:12Z 1 -> 2: TTFT 812 ms of 500 ms`; other text stays as it is. */
export function parseChange(text: string): Change {
  const [, when, from, to, why] = FORM.exec(text) ?? [];
  const time = parseTime(when);
  if (time === null) return { time: null, from: null, to: null, why: text };
  return { time, from: Number(from), to: Number(to), why: why ?? "" };
}
