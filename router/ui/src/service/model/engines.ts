/** The order of the engines table, and its last row. */
import type { Endpoint } from "../../state/types";

export type Column =
  "name" | "revision" | "weight" | "load" | "kv" | "hits" | "memory" | "acceptance" | "speed" | "adapters";

export interface Order {
  column: Column;
  descending: boolean;
}

/** What goes wrong comes first, and within that the order that is asked for. */
export const BY_NAME: Order = { column: "name", descending: false };

const STATES: Record<Endpoint["state"], number> = { ejected: 0, unreachable: 1, starting: 2, draining: 3, ready: 4 };

export function sortEndpoints(endpoints: Endpoint[], { column, descending }: Order): Endpoint[] {
  const direction = descending ? -1 : 1;
  return [...endpoints].sort((a, b) => {
    if (column === "name") return STATES[a.state] - STATES[b.state] || direction * byName(a, b);
    const [x, y] = [valueOf(a, column), valueOf(b, column)];
    if (x === null || y === null) return Number(x === null) - Number(y === null) || byName(a, b); // unknown ones are last
    return direction * (typeof x === "string" ? x.localeCompare(String(y)) : x - Number(y)) || byName(a, b);
  });
}

const names = new Intl.Collator(undefined, { numeric: true });
const byName = (a: Endpoint, b: Endpoint): number => names.compare(a.name, b.name);

function valueOf(endpoint: Endpoint, column: Column): number | string | null {
  switch (column) {
    case "revision":
      return endpoint.revision;
    case "weight":
      return endpoint.weight;
    case "load":
      return endpoint.running === null ? null : endpoint.running + (endpoint.waiting ?? 0);
    case "kv":
      return endpoint.kvUsed;
    case "hits":
      return endpoint.prefixHit;
    case "memory":
      return memory(endpoint)?.share ?? null;
    case "acceptance":
      return endpoint.acceptance;
    case "speed":
      return endpoint.tokensPerSecond;
    case "adapters":
      return endpoint.adapters.length;
    default:
      return endpoint.name;
  }
}

export interface Memory {
  used: number;
  total: number;
  share: number;
}

/** The memory of all devices of an engine, in bytes; null where it has none. */
export function memory({ gpus }: Pick<Endpoint, "gpus">): Memory | null {
  if (!gpus.length) return null;
  const used = gpus.reduce((sum, gpu) => sum + gpu.memoryUsed, 0);
  const total = gpus.reduce((sum, gpu) => sum + gpu.memoryTotal, 0);
  return { used, total, share: total ? used / total : 0 };
}

export interface Totals {
  ready: number;
  inFlight: number;
  running: number | null;
  waiting: number | null;
  maxRunning: number | null;
  kvTokens: number | null;
  kvTokensTotal: number | null;
  tokensPerSecond: number | null;
}

/** Sums over the engines; null where none says a number. */
export function totals(endpoints: Endpoint[]): Totals {
  const sum = (
    key: "running" | "waiting" | "maxRunning" | "kvTokens" | "kvTokensTotal" | "tokensPerSecond",
  ): number | null =>
    endpoints.reduce<number | null>((all, each) => (each[key] === null ? all : (all ?? 0) + each[key]), null);
  return {
    ready: endpoints.filter((each) => each.state === "ready").length,
    inFlight: endpoints.reduce((all, each) => all + each.inFlight, 0),
    running: sum("running"),
    waiting: sum("waiting"),
    maxRunning: sum("maxRunning"),
    kvTokens: sum("kvTokens"),
    kvTokensTotal: sum("kvTokensTotal"),
    tokensPerSecond: sum("tokensPerSecond"),
  };
}
