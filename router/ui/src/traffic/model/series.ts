/** Points of the stream as columns for uPlot, and what they say in words. */
import type { Point } from "../../state/types";

export type Column = (number | null)[];

/** Points further apart than so many seconds have a gap between them. */
const GAP = 3.5;

/** `points` with an empty one in each gap, which breaks the lines. */
export function withGaps(points: Point[]): (Point | number)[] {
  const filled: (Point | number)[] = [];
  let before: Point | undefined;
  for (const point of points) {
    if (before && point.time - before.time > GAP) filled.push((before.time + point.time) / 2);
    filled.push(point);
    before = point;
  }
  return filled;
}

export type Pick = (point: Point) => number | null;

/** Times, then one column for each of `picks`. */
export function columns(points: Point[], picks: Pick[]): [number[], ...Column[]] {
  const filled = withGaps(points);
  const times = filled.map((each) => (typeof each === "number" ? each : each.time));
  return [times, ...picks.map((pick) => filled.map((each) => (typeof each === "number" ? null : pick(each))))];
}

export const OTHER = "other";

/** The keys that have tokens in any point, in the order in which they are stacked: by name, `other` last. */
export function keysOf(points: Point[]): string[] {
  const found = new Set<string>();
  for (const point of points) for (const key in point.tokens) found.add(key);
  const order = new Intl.Collator(undefined, { numeric: true });
  return [...found].sort((a, b) => Number(a === OTHER) - Number(b === OTHER) || order.compare(a, b));
}

/** Times, then for each key the sum of its tokens and of those below it. */
export function stacked(points: Point[], keys: string[]): [number[], ...Column[]] {
  const [times, ...found] = columns(
    points,
    keys.map((key) => (point: Point) => point.tokens[key] ?? 0),
  );
  for (let row = 1; row < found.length; row += 1) {
    const below = found[row - 1];
    found[row] = (found[row] ?? []).map((value, index) => (value === null ? null : value + (below?.[index] ?? 0)));
  }
  return [times, ...found];
}

export interface Summary {
  now: number | null;
  mean: number | null;
  highest: number | null;
}

/** The last, the mean and the highest of what is known. */
export function summarize(values: Column): Summary {
  let sum = 0;
  let known = 0;
  let highest: number | null = null;
  for (const value of values) {
    if (value === null) continue;
    sum += value;
    known += 1;
    if (highest === null || value > highest) highest = value;
  }
  return { now: values.at(-1) ?? null, mean: known ? sum / known : null, highest };
}

/** Every `step` seconds the mean of each column in them, newest first: the table beside a plot. */
export function tableRows(data: [number[], ...Column[]], step: number): { time: number; values: Column }[] {
  const [times, ...found] = data;
  const groups = new Map<number, number[]>();
  times.forEach((time, index) => {
    const start = Math.floor(time / step) * step;
    const group = groups.get(start);
    if (group) group.push(index);
    else groups.set(start, [index]);
  });
  return [...groups]
    .sort(([a], [b]) => b - a)
    .map(([time, group]) => ({
      time,
      values: found.map((column) => summarize(group.map((index) => column[index] ?? null)).mean),
    }));
}
