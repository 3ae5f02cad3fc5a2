/**
 * What `/ui/stream` sends. The router's side of it: `blade_router/ui/`. Times are unix seconds, durations seconds,
 * unknown numbers null.
 */

export interface State {
  time: number;
  router: Router;
  /** As the operator last reported it; null for a router that runs alone. */
  service: Service | null;
  endpoints: Endpoint[];
  /** The last 300 s, oldest first. */
  traffic: { interval: 1; points: Point[] };
  /** The last 200, oldest first. */
  requests: Request[];
}

export interface Router {
  version: string;
  started: number;
  policy: string;
  workers: number;
  replicas: number;
  keyed: boolean;
  /** "own": the key sees its own requests and tokens only. */
  scope: "all" | "own";
  key: string | null;
  models: { id: string; kind: "base" | "adapter" | "alias"; parent: string | null }[];
}

export interface Condition {
  type: string;
  status: "True" | "False" | "Unknown";
  reason?: string;
  message?: string;
  lastTransitionTime?: string;
}

/** The custom resource, as the CRD has it: what is not listed here is looked up by name. */
export interface LLMService {
  apiVersion: string;
  kind: string;
  metadata: { name: string; namespace: string; generation?: number };
  spec: Record<string, any>;
  status?: { conditions?: Condition[] } & Record<string, any>;
}

export interface Pod {
  name: string;
  role: "engine" | "router";
  phase: string;
  ready: boolean;
  revision: string | null;
  node: string | null;
  restarts: number;
  /** Why it fails, with the failing container's last line. */
  message: string | null;
}

export interface ServiceEvent {
  time: number;
  type: "Normal" | "Warning";
  reason: string;
  message: string;
  object: string;
  count: number;
}

export interface Service {
  /** When the operator said it. */
  reported: number;
  object: LLMService;
  pods: Pod[];
  /** Newest last, at most 50. */
  events: ServiceEvent[];
}

export interface Endpoint {
  name: string;
  address: string;
  state: "ready" | "starting" | "draining" | "ejected" | "unreachable";
  why: string | null;
  revision: string | null;
  weight: number;
  models: string[];
  adapters: string[];
  /** Of this router. */
  inFlight: number;
  running: number | null;
  waiting: number | null;
  maxRunning: number | null;
  /** 0..1 */
  kvUsed: number | null;
  kvTokens: number | null;
  kvTokensTotal: number | null;
  /** 0..1 */
  prefixHit: number | null;
  /** 0..1 */
  acceptance: number | null;
  tokensPerSecond: number | null;
  /** Bytes. */
  gpus: { name: string; memoryUsed: number; memoryTotal: number }[];
}

/** One second. */
export interface Point {
  time: number;
  rate: number;
  inFlight: number;
  queue: number;
  errors: number;
  /** p50, p90, p99 of the last minute. */
  ttft: [number, number, number] | null;
  tpot: [number, number, number] | null;
  prefixHit: number | null;
  acceptance: number | null;
  /** Completion tokens a second by key name ("" where there are no keys); at most 10 keys, then "other". */
  tokens: Record<string, number>;
}

export interface Request {
  id: string;
  traceId: string | null;
  started: number;
  key: string | null;
  model: string;
  path: string;
  stream: boolean;
  /** null: in flight */
  status: number | null;
  /** Error code. */
  error: string | null;
  endpoint: string | null;
  /** Why it was chosen: x-blade-route-reason. */
  reason: string | null;
  promptTokens: number | null;
  cachedTokens: number | null;
  completionTokens: number | null;
  /** Seconds after `started`. */
  queued: number | null;
  chosen: number | null;
  firstToken: number | null;
  end: number | null;
  /** Retries and resumes, in order. */
  attempts: { endpoint: string; at: number; outcome: string }[];
}
