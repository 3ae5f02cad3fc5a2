/** A request's time as bars on one scale for all rows: waiting in the router, to the first token, to the end. */
import type { Request } from "../../state/types";

export type Phase = "queued" | "first" | "tokens";

export const PHASES: Record<Phase, string> = { queued: "Queued", first: "To the first token", tokens: "Tokens" };

export interface Bar {
  phase: Phase;
  /** Seconds after the request's start. */
  from: number;
  to: number;
  /** It is still this long and grows. */
  open: boolean;
}

/** The bars of a request at `now` (unix seconds), without gaps. */
export function bars(request: Request, now: number): Bar[] {
  const running = request.end === null;
  const end = Math.max(0, request.end ?? now - request.started);
  const queued = Math.min(request.queued ?? 0, end);
  const chosen = request.chosen === null ? end : clamp(request.chosen, queued, end);
  const found: Bar[] = [];
  const add = (phase: Phase, from: number, to: number, open: boolean) => {
    if (to > from || open) found.push({ phase, from, to, open });
  };
  add("queued", 0, chosen, running && request.chosen === null);
  if (request.chosen === null) return found;
  const first = request.firstToken === null ? end : clamp(request.firstToken, chosen, end);
  add("first", chosen, first, running && request.firstToken === null);
  if (request.firstToken !== null) add("tokens", first, end, running);
  return found;
}

export const clamp = (value: number, least: number, most: number): number => Math.min(Math.max(value, least), most);

/** Seconds that a request took, or has taken until `now`. */
export const took = (request: Request, now: number): number => Math.max(0, request.end ?? now - request.started);

/** Seconds after the first token per token after it; null where there are fewer than two. */
export function tpot(request: Request): number | null {
  if (request.end === null || request.firstToken === null || !request.completionTokens || request.completionTokens < 2)
    return null;
  return (request.end - request.firstToken) / (request.completionTokens - 1);
}

/** The scale's end in seconds: a round number that all but the longest twentieth of the rows fit in. */
export function scaleOf(requests: Request[], now: number): number {
  const sorted = requests.map((request) => took(request, now)).sort((a, b) => a - b);
  const longest = sorted[Math.ceil(sorted.length * 0.95) - 1] ?? 1;
  return roundUp(Math.max(longest, 0.01));
}

/** The next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten. */
export function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((each) => each * power >= value * 0.9999) ?? 10;
  return Number((step * power).toPrecision(3));
}
