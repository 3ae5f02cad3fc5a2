import { describe, expect, it } from "vitest";
import { conditionTree, tone } from "../src/service/model/conditions";
import { BY_NAME, memory, sortEndpoints, totals } from "../src/service/model/engines";
import { rolloutView } from "../src/service/model/rollout";
import { parseChange } from "../src/service/model/scaling";
import { toYaml } from "../src/state/yaml";
import type { Condition, Endpoint, Service } from "../src/state/types";

const condition = (type: string, status: Condition["status"], reason: string): Condition => ({
  type,
  status,
  reason,
  message: "",
});

describe("conditions", () => {
  it.each([
    ["Ready", "True", "Ready", "good"],
    ["Ready", "False", "CrashLoopBackOff", "bad"],
    ["Ready", "False", "EnginesStarting", "busy"],
    ["WorkersReady", "False", "ScaledToZero", "good"],
    ["WorkersReady", "True", "SomeReady", "warn"],
    ["PreflightPassed", "True", "PassedWithWarnings", "warn"],
    ["PreflightPassed", "Unknown", "Checking", "busy"],
    ["ModelFits", "Unknown", "NoPods", "unknown"],
    ["Degraded", "True", "OOMKilled", "bad"],
    ["Degraded", "False", "AsExpected", "good"],
    ["RolloutAborted", "True", "WorseThanStable", "bad"],
    ["Progressing", "True", "Updating", "busy"],
    ["Progressing", "Unknown", "Paused", "warn"],
    ["Progressing", "False", "Complete", "good"],
    ["Progressing", "False", "ProgressDeadlineExceeded", "bad"],
    ["Reconciling", "True", "Updating", "busy"],
    ["Scaling", "False", "AtMaximum", "warn"],
    ["Scaling", "False", "ScheduleInvalid", "bad"],
    ["Scaling", "Unknown", "NoMetrics", "warn"],
  ] as const)("%s %s %s is %s", (type, status, reason, expected) => {
    expect(tone(condition(type, status, reason))).toBe(expected);
  });

  it("shows what fails first, and what Ready needs under it", () => {
    const tree = conditionTree([
      condition("Degraded", "True", "OOMKilled"),
      condition("RouterReady", "True", "AllReady"),
      condition("SpecValid", "True", "Valid"),
      condition("WorkersReady", "False", "OOMKilled"),
      condition("Ready", "False", "OOMKilled"),
      condition("Progressing", "True", "Starting"),
    ]);
    expect(tree.root?.condition.type).toBe("Ready");
    expect(tree.needed.map((each) => each.condition.type)).toEqual(["WorkersReady", "SpecValid", "RouterReady"]);
    expect(tree.besides.map((each) => each.condition.type)).toEqual(["Degraded", "Progressing"]);
  });
});

describe("YAML", () => {
  it("writes blocks, and quotes only what would be read as something else", () => {
    const value = {
      kind: "LLMService",
      spec: {
        replicas: 2,
        memory: "0.9",
        on: "yes",
        uri: "hf://Qwen/Qwen3-8B",
        note: "a: b",
        empty: {},
        none: [],
        tail: "it # is",
      },
      list: [{ name: "sql", pods: ["a", "b"] }, 3, "-x", ""],
      text: "two\nlines",
      wait: "500ms",
      revision: ["4ca6cbb5", "12345e67", "0x1f", "1:30"],
      since: "2026-11-29T08:00:12Z",
      nothing: null,
    };
    expect(toYaml(value)).toBe(
      [
        "kind: LLMService",
        "spec:",
        "  replicas: 2",
        '  memory: "0.9"',
        '  "on": "yes"',
        "  uri: hf://Qwen/Qwen3-8B",
        '  note: "a: b"',
        "  empty: {}",
        "  none: []",
        '  tail: "it # is"',
        "list:",
        "- name: sql",
        "  pods:",
        "  - a",
        "  - b",
        "- 3",
        '- "-x"',
        '- ""',
        'text: "two\\nlines"',
        "wait: 500ms",
        "revision:",
        "- 4ca6cbb5",
        '- "12345e67"',
        '- "0x1f"',
        '- "1:30"',
        'since: "2026-11-29T08:00:12Z"',
        "nothing: null",
        "",
      ].join("\n"),
    );
  });
});

describe("rollout", () => {
  const service = (phase: string, weight: number, shadow = false): Service =>
    ({
      object: {
        spec: { rollout: { canary: { steps: [50, 5, 25], ...(shadow ? { shadow: {} } : {}) } } },
        status: {
          canary: { phase, weight, revision: "new", stable: "old", since: "2026-11-29T08:00:12Z" },
          revision: { current: "new", stable: "old" },
          conditions: [condition("Progressing", "True", "Canary")],
        },
      },
      pods: [
        { role: "engine", revision: "old", ready: true },
        { role: "engine", revision: "new", ready: false },
        { role: "router", revision: null, ready: true },
      ],
    }) as unknown as Service;
  const steps = (phase: string, weight: number, shadow = false) =>
    rolloutView(service(phase, weight, shadow)).canary?.steps.map((step) => `${step.name} ${step.state}`);

  it("tells the steps of a canary that are done", () => {
    expect(steps("Running", 25)).toEqual(["5 % done", "25 % now", "50 % next", "100 % next"]);
    expect(steps("Waiting", 5)).toEqual(["5 % done", "25 % now", "50 % next", "100 % next"]);
    expect(steps("Waiting", 0)).toEqual(["5 % now", "25 % next", "50 % next", "100 % next"]);
    expect(steps("Shadowing", 0, true)).toEqual(["Shadow now", "5 % next", "25 % next", "50 % next", "100 % next"]);
    expect(steps("Running", 5, true)?.slice(0, 2)).toEqual(["Shadow done", "5 % now"]);
    expect(steps("Promoting", 50)).toEqual(["5 % done", "25 % done", "50 % done", "100 % now"]);
    expect(steps("Aborted", 0)?.every((step) => step.endsWith("next"))).toBe(true);
  });

  it("counts the engines of each revision", () => {
    const view = rolloutView(service("Running", 25));
    expect(view.state).toBe("running");
    expect(view.canary?.since).toBe(Date.UTC(2026, 10, 29, 8, 0, 12) / 1000);
    expect(view.revisions).toEqual([
      { name: "new", roles: ["current"], engines: 1, ready: 0 },
      { name: "old", roles: ["stable"], engines: 1, ready: 1 },
    ]);
  });

  it("does not say that no engine is updated to a viewer who is not told", () => {
    const all = service("Running", 25);
    expect(rolloutView(all).updated).toBe(0);
    expect(rolloutView({ ...all, object: { ...all.object, spec: {} } }).updated).toBeNull();
  });

  it("copes with a service that has no status yet", () => {
    const view = rolloutView({ object: { spec: {} }, pods: [] } as unknown as Service);
    expect(view).toMatchObject({ state: "complete", desired: 0, canary: null, revisions: [] });
  });
});

describe("scaling", () => {
  it("reads a change, and leaves what it cannot read", () => {
    expect(parseChange("2026-11-29T08:00:12Z 1 -> 2: TTFT 812 ms of 500 ms: all")).toEqual({
      time: Date.UTC(2026, 10, 29, 8, 0, 12) / 1000,
      from: 1,
      to: 2,
      why: "TTFT 812 ms of 500 ms: all",
    });
    expect(parseChange("somebody did")).toEqual({ time: null, from: null, to: null, why: "somebody did" });
  });
});

describe("engines", () => {
  const endpoint = (name: string, change: Partial<Endpoint> = {}): Endpoint => ({
    name,
    address: "",
    state: "ready",
    why: null,
    revision: null,
    weight: 100,
    models: [],
    adapters: [],
    inFlight: 1,
    running: null,
    waiting: null,
    maxRunning: null,
    kvUsed: null,
    kvTokens: null,
    kvTokensTotal: null,
    prefixHit: null,
    acceptance: null,
    tokensPerSecond: null,
    gpus: [],
    ...change,
  });

  it("sorts by number in names, and what does not serve first", () => {
    const sorted = sortEndpoints([endpoint("e-10"), endpoint("e-9"), endpoint("e-11", { state: "ejected" })], BY_NAME);
    expect(sorted.map((each) => each.name)).toEqual(["e-11", "e-9", "e-10"]);
  });

  it("puts unknown numbers last, in both directions", () => {
    const list = [endpoint("a"), endpoint("b", { kvUsed: 0.2 }), endpoint("c", { kvUsed: 0.7 })];
    expect(sortEndpoints(list, { column: "kv", descending: true }).map((each) => each.name)).toEqual(["c", "b", "a"]);
    expect(sortEndpoints(list, { column: "kv", descending: false }).map((each) => each.name)).toEqual(["b", "c", "a"]);
  });

  it("adds up what is known", () => {
    const all = totals([
      endpoint("a", { running: 3, waiting: 1 }),
      endpoint("b", { state: "draining" }),
      endpoint("c", { running: 4 }),
    ]);
    expect(all).toMatchObject({ ready: 2, inFlight: 3, running: 7, waiting: 1, kvTokens: null });
    expect(memory(endpoint("a"))).toBeNull();
    const gpu = { name: "", memoryUsed: 1, memoryTotal: 4 };
    expect(memory(endpoint("a", { gpus: [gpu, gpu] }))).toEqual({ used: 2, total: 8, share: 0.25 });
  });
});
