/** Which of the last requests are shown. */
import type { Request } from "../../state/types";

export type Outcome = "" | "flight" | "ok" | "error" | "retried";

/** Empty: all. */
export interface Filter {
  key: string;
  model: string;
  engine: string;
  outcome: Outcome;
}

export const NO_FILTER: Filter = { key: "", model: "", engine: "", outcome: "" };
/** Stands for requests without a key, which have no name. */
export const NO_KEY = "(none)";

/** It ended among more than the router lists: how is not known. */
export const isUnrecorded = (request: Request): boolean => request.status === 0;
export const isError = (request: Request): boolean =>
  !isUnrecorded(request) && (request.error !== null || (request.status !== null && request.status >= 400));
export const inFlight = (request: Request): boolean => request.status === null && request.end === null;

/** The tries after the first one: retries, and where a stream went on elsewhere. */
export const retries = (request: Request): Request["attempts"] => request.attempts.slice(1);

/** The requests that pass, newest first. */
export function filterRequests(requests: Request[], filter: Filter): Request[] {
  const shown = requests.filter((request) => passes(request, filter)).reverse();
  return shown.sort((a, b) => b.started - a.started); // those of several processes come as each of them tells
}

function passes(request: Request, filter: Filter): boolean {
  return (
    (!filter.key || (request.key ?? NO_KEY) === filter.key) &&
    (!filter.model || request.model === filter.model) &&
    (!filter.engine ||
      request.endpoint === filter.engine ||
      request.attempts.some((each) => each.endpoint === filter.engine)) &&
    hasOutcome(request, filter.outcome)
  );
}

function hasOutcome(request: Request, outcome: Outcome): boolean {
  switch (outcome) {
    case "flight":
      return inFlight(request);
    case "ok":
      return !inFlight(request) && !isError(request) && !isUnrecorded(request);
    case "error":
      return isError(request);
    case "retried":
      return retries(request).length > 0;
    default:
      return true;
  }
}

export interface Choices {
  keys: string[];
  models: string[];
  engines: string[];
}

/** What can be chosen from: what the requests have, and what is chosen already. */
export function choices(requests: Request[], filter: Filter): Choices {
  const keys = new Set<string>();
  const models = new Set<string>();
  const engines = new Set<string>();
  for (const request of requests) {
    keys.add(request.key ?? NO_KEY);
    models.add(request.model);
    if (request.endpoint) engines.add(request.endpoint);
    for (const attempt of request.attempts) engines.add(attempt.endpoint);
  }
  const list = (found: Set<string>, chosen: string) => {
    if (chosen) found.add(chosen);
    return [...found].filter(Boolean).sort(order.compare);
  };
  return { keys: list(keys, filter.key), models: list(models, filter.model), engines: list(engines, filter.engine) };
}

const order = new Intl.Collator(undefined, { numeric: true });
