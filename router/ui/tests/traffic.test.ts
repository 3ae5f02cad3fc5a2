import { describe, expect, it } from "vitest";
import type { Point, Request } from "../src/state/types";
import { choices, filterRequests, NO_FILTER, NO_KEY } from "../src/traffic/model/filter";
import { commonPrefix } from "../src/traffic/model/names";
import { explainReason, shortReason } from "../src/traffic/model/reason";
import { columns, keysOf, stacked, summarize, tableRows } from "../src/traffic/model/series";
import { bars, roundUp, scaleOf, tpot } from "../src/traffic/model/waterfall";
import { usageUnknown } from "../src/traffic/model/usage";
import { slice } from "../src/traffic/model/window";

const request = (id: string, change: Partial<Request> = {}): Request => ({
  id,
  traceId: null,
  started: 100,
  key: "team-a",
  model: "m",
  path: "/v1/completions",
  stream: true,
  status: 200,
  error: null,
  endpoint: "e-1",
  reason: null,
  promptTokens: 10,
  cachedTokens: 0,
  completionTokens: 11,
  queued: 0,
  chosen: 0.5,
  firstToken: 1,
  end: 3,
  attempts: [],
  ...change,
});

const point = (time: number, change: Partial<Point> = {}): Point => ({
  time,
  rate: 1,
  inFlight: 0,
  queue: 0,
  errors: 0,
  ttft: null,
  tpot: null,
  prefixHit: null,
  acceptance: null,
  tokens: {},
  ...change,
});

describe("waterfall", () => {
  it("has a bar for each part of a request's time, without gaps", () => {
    expect(bars(request("a"), 200)).toEqual([
      { phase: "queued", from: 0, to: 0.5, open: false },
      { phase: "first", from: 0.5, to: 1, open: false },
      { phase: "tokens", from: 1, to: 3, open: false },
    ]);
  });

  it("grows while the request is in flight", () => {
    const waiting = request("a", { status: null, end: null, chosen: null, firstToken: null });
    expect(bars(waiting, 102)).toEqual([{ phase: "queued", from: 0, to: 2, open: true }]);
    const prefill = request("a", { status: null, end: null, firstToken: null });
    expect(bars(prefill, 102).at(-1)).toEqual({ phase: "first", from: 0.5, to: 2, open: true });
    const decode = request("a", { status: null, end: null });
    expect(bars(decode, 102).at(-1)).toEqual({ phase: "tokens", from: 1, to: 2, open: true });
  });

  it("has no tokens where a request failed before one, and is never negative by a clock that is off", () => {
    expect(bars(request("a", { firstToken: null, status: 503 }), 200).map((bar) => bar.phase)).toEqual([
      "queued",
      "first",
    ]);
    expect(bars(request("a", { status: null, end: null, chosen: null, firstToken: null }), 90)).toEqual([
      { phase: "queued", from: 0, to: 0, open: true },
    ]);
  });

  it("scales to a round number that the longest twentieth may pass", () => {
    const many = Array.from({ length: 100 }, (_, index) => request(`${index}`, { end: index < 96 ? 1.2 : 600 }));
    expect(scaleOf(many, 200)).toBe(1.5);
    expect([0.011, 1, 7, 99].map(roundUp)).toEqual([0.015, 1, 8, 100]);
    expect(scaleOf([], 0)).toBeGreaterThan(0);
  });

  it("says the time per token only where there are two", () => {
    expect(tpot(request("a"))).toBeCloseTo(0.2);
    expect(tpot(request("a", { completionTokens: 1 }))).toBeNull();
  });
});

describe("filter", () => {
  const first = { endpoint: "e-1", at: 0, outcome: "connect" };
  const list = [
    request("a", { key: null, attempts: [first] }),
    request("b", { status: 503, error: "engine_unavailable", endpoint: "e-2" }),
    request("c", { status: null, end: null, model: "sql" }),
    request("d", { started: 101, attempts: [first, { endpoint: "e-2", at: 0.1, outcome: "200" }] }),
  ];
  const ids = (change: Partial<typeof NO_FILTER>) =>
    filterRequests(list, { ...NO_FILTER, ...change }).map((each) => each.id);

  it("shows the newest first, and of them what passes", () => {
    expect(ids({})).toEqual(["d", "c", "b", "a"]);
    expect(ids({ key: NO_KEY })).toEqual(["a"]);
    expect(ids({ model: "sql" })).toEqual(["c"]);
    expect(ids({ engine: "e-2" })).toEqual(["d", "b"]);
    expect(ids({ outcome: "flight" })).toEqual(["c"]);
    expect(ids({ outcome: "ok" })).toEqual(["d", "a"]);
    expect(ids({ outcome: "error" })).toEqual(["b"]);
    expect(ids({ outcome: "retried", key: "team-a" })).toEqual(["d"]);
  });

  it("counts one whose end is not recorded neither as succeeded nor as failed", () => {
    const lost = [request("l", { status: 0, error: "not_recorded", completionTokens: null })];
    const counted = (["flight", "ok", "error"] as const).map(
      (outcome) => filterRequests(lost, { ...NO_FILTER, outcome }).length,
    );
    expect(counted).toEqual([0, 0, 0]);
    expect(usageUnknown(lost[0]!)).toBeNull();
  });

  it("has the order of their start where they come in another", () => {
    const late = [request("x", { started: 105 }), request("y", { started: 104 })];
    expect(filterRequests(late, NO_FILTER).map((each) => each.id)).toEqual(["x", "y"]);
  });

  it("offers what there is, and what is chosen already", () => {
    expect(choices(list, { ...NO_FILTER, model: "gone" })).toEqual({
      keys: [NO_KEY, "team-a"],
      models: ["gone", "m", "sql"],
      engines: ["e-1", "e-2"],
    });
  });
});

describe("usage", () => {
  it("says why tokens are not known", () => {
    const ended = { status: 200, end: 1 };
    expect(usageUnknown(request("a", { ...ended, completionTokens: 0 }))).toBeNull();
    expect(usageUnknown(request("a", { status: 503, end: 1, completionTokens: null }))).toBeNull();
    expect(usageUnknown(request("a", { ...ended, stream: true, completionTokens: null }))).toContain("include_usage");
    expect(usageUnknown(request("a", { ...ended, stream: false, completionTokens: null }))).not.toContain("stream");
    expect(usageUnknown(request("a", { status: null, end: null, completionTokens: null }))).toContain("before");
  });
});

describe("reason", () => {
  it("says in words why an engine was chosen", () => {
    const { policy, facts } = explainReason(
      "canary rev=5b6c auto prefix=12/17 in_flight=3 ms=24.0 retry=connect odd=1",
    );
    expect(policy).toBe("canary auto");
    expect(facts.map((fact) => `${fact.name}: ${fact.value}`)).toEqual([
      "Revision: 5b6c",
      "Cached blocks: 12 of 17",
      "In flight there: 3",
      "Cost: 24.0 ms",
      "Retried after: connect",
      "odd: 1",
    ]);
    expect(shortReason("auto prefix=12/17 in_flight=3 ms=24.0")).toBe("auto · 12 of 17");
    expect(shortReason("auto prefix=0/0 in_flight=0 ms=0.7")).toBe("auto");
    expect(shortReason(null)).toBe("");
  });
});

describe("series", () => {
  it("breaks lines where seconds are missing", () => {
    const [times, rates] = columns([point(1), point(2), point(10)], [(each) => each.rate]);
    expect(times).toEqual([1, 2, 6, 10]);
    expect(rates).toEqual([1, 1, null, 1]);
  });

  it("stacks keys by name, the rest on top", () => {
    const points = [point(1, { tokens: { other: 1, b: 2, a: 4 } }), point(2, { tokens: { a: 1 } })];
    const keys = keysOf(points);
    expect(keys).toEqual(["a", "b", "other"]);
    expect(stacked(points, keys)).toEqual([
      [1, 2],
      [4, 1],
      [6, 1],
      [7, 1],
    ]);
  });

  it("says the last, the mean and the highest of what is known", () => {
    expect(summarize([1, null, 5])).toEqual({ now: 5, mean: 3, highest: 5 });
    expect(summarize([null])).toEqual({ now: null, mean: null, highest: null });
  });

  it("has a row for each ten seconds in the table, newest first", () => {
    const rows = tableRows(
      [
        [10, 11, 20],
        [1, 3, null],
      ],
      10,
    );
    expect(rows).toEqual([
      { time: 20, values: [null] },
      { time: 10, values: [2] },
    ]);
  });
});

describe("rows in sight", () => {
  it("are those between top and bottom, and some more", () => {
    expect(slice(200, 34, 0, 340)).toEqual({ first: 0, last: 16 });
    expect(slice(200, 34, 3400, 340)).toEqual({ first: 94, last: 116 });
    expect(slice(200, 34, 99999, 340)).toEqual({ first: 200, last: 200 });
    expect(slice(0, 34, 0, 340)).toEqual({ first: 0, last: 0 });
  });
});

describe("names", () => {
  it("leave out what all begin with, up to a separator", () => {
    expect(commonPrefix(["qwen-engine-4ca6cbb5-0", "qwen-engine-4ca6cbb5-12"])).toBe("qwen-engine-4ca6cbb5-");
    expect(commonPrefix(["http://127.0.0.1:8081", "http://127.0.0.1:8082"])).toBe("http://127.0.0.1:");
    expect(commonPrefix(["one", "other"])).toBe("");
    expect(commonPrefix(["alone-1"])).toBe("");
    expect(commonPrefix([])).toBe("");
  });
});
