/** Where a change of the engines stands, from the fields that the operator writes. */
import { parseTime } from "../../state/format";
import type { Condition, Service } from "../../state/types";

export interface Step {
  name: string;
  state: "done" | "now" | "next";
}

export interface CanaryView {
  phase: string;
  revision: string;
  stable: string;
  weight: number;
  /** Unix seconds; null where it is not said. */
  since: number | null;
  steps: Step[];
  /** What a step takes at least, in words. */
  rule: string;
  /** Why it was aborted, or what it waits for. */
  verdict: string;
  aborted: boolean;
}

export interface RevisionRow {
  name: string;
  roles: string[];
  engines: number;
  ready: number;
}

export interface RolloutView {
  /** Whether something changes, is held or has failed: otherwise the revision alone is worth a line. */
  state: "complete" | "running" | "held" | "failed";
  message: string;
  /** Engines of the current revision; null where it is not told. */
  updated: number | null;
  desired: number;
  revisions: RevisionRow[];
  canary: CanaryView | null;
}

export function rolloutView(service: Service): RolloutView {
  const status = service.object.status ?? {};
  const conditions = status.conditions ?? [];
  const progressing = conditions.find((each) => each.type === "Progressing");
  return {
    state: stateOf(progressing),
    message: progressing?.message ?? "",
    updated: status.updatedReplicas ?? (Object.keys(service.object.spec).length ? 0 : null),
    desired: status.desiredReplicas ?? status.replicas ?? 0,
    revisions: revisions(service),
    canary: canaryView(service.object.spec, status, conditions),
  };
}

function stateOf(progressing: Condition | undefined): RolloutView["state"] {
  if (!progressing || progressing.reason === "Complete") return "complete";
  if (progressing.status === "True") return "running";
  return progressing.status === "Unknown" ? "held" : "failed";
}

/** The revisions that have engines, or are of note: the current one first. */
function revisions(service: Service): RevisionRow[] {
  const said = service.object.status?.revision ?? {};
  const rows = new Map<string, RevisionRow>();
  const row = (name: string) => {
    let found = rows.get(name);
    if (!found) rows.set(name, (found = { name, roles: [], engines: 0, ready: 0 }));
    return found;
  };
  for (const role of ["current", "stable", "failed"]) if (said[role]) row(said[role]).roles.push(role);
  for (const pod of service.pods) {
    if (pod.role !== "engine" || !pod.revision) continue;
    const found = row(pod.revision);
    found.engines += 1;
    if (pod.ready) found.ready += 1;
  }
  return [...rows.values()];
}

function canaryView(
  spec: Record<string, any>,
  status: Record<string, any>,
  conditions: Condition[],
): CanaryView | null {
  const canary = status.canary;
  if (!canary) return null;
  const settings = spec.rollout?.canary ?? {};
  const weight: number = canary.weight ?? 0;
  const aborted = canary.phase === "Aborted";
  const verdict = conditions.find((each) => each.type === "RolloutAborted" && each.status === "True");
  return {
    phase: canary.phase,
    revision: canary.revision,
    stable: canary.stable,
    weight,
    since: parseTime(canary.since),
    steps: steps(settings, canary.phase, weight),
    rule: `${settings.interval ?? "5m"} and ${settings.minRequests ?? 200} requests at least`,
    verdict: verdict?.message ?? conditions.find((each) => each.type === "Progressing")?.message ?? "",
    aborted,
  };
}

function steps(settings: Record<string, any>, phase: string, weight: number): Step[] {
  const shares: number[] = [...(settings.steps ?? [5, 25, 50])].sort((a, b) => a - b);
  const names = [...(settings.shadow ? ["Shadow"] : []), ...shares.map((share) => `${share} %`), "100 %"];
  const first = settings.shadow ? 1 : 0;
  // While it waits for engines of the next step, it keeps the share of the last one: the next step is what happens now.
  const passed = shares.filter((share) => share < weight || (share === weight && phase === "Waiting")).length;
  const at = phase === "Promoting" ? names.length - 1 : phase === "Shadowing" || !weight ? 0 : first + passed;
  const over = phase === "Aborted" || phase === "Withdrawn";
  return names.map((name, index) => ({
    name,
    state: over ? "next" : index < at ? "done" : index === at ? "now" : "next",
  }));
}
