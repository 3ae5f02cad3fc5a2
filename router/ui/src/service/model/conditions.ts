/** What a condition's status means: some are good when they hold, others when they do not. */
import type { Condition } from "../../state/types";

/** "busy": on its way; "warn": works, but look; "unknown": not said yet. */
export type Tone = "good" | "busy" | "warn" | "bad" | "unknown";

export const WORDS: Record<Tone, string> = {
  good: "OK",
  busy: "In progress",
  warn: "Attention",
  bad: "Failing",
  unknown: "Unknown",
};

export interface Judged {
  condition: Condition;
  tone: Tone;
}

export interface Tree {
  /** `Ready`, or null of a service without a status. */
  root: Judged | null;
  /** What Ready is made of: the worst first, and equal ones in the order in which a service starts. */
  needed: Judged[];
  /** All else. */
  besides: Judged[];
}

const NEEDED = ["SpecValid", "ModelCached", "PreflightPassed", "ModelFits", "WorkersReady", "RouterReady"];
const BESIDES = [
  "AdaptersReady",
  "Scaling",
  "SpeculationEffective",
  "Progressing",
  "Degraded",
  "Stalled",
  "Reconciling",
];
const GOOD_WHEN_FALSE = new Set(["Degraded", "Stalled", "Contested", "RolloutAborted", "InternalTokenRefused"]);
/** Reasons of what is not there yet, and comes without anybody's doing. */
const ON_ITS_WAY = new Set([
  "Downloading",
  "EnginesStarting",
  "RouterStarting",
  "Starting",
  "Loading",
  "Checking",
  "Waking",
  "Updating",
  "NoPods",
  "NotReported",
  "Canary",
  "Draining",
  "Pending",
  "PodInitializing",
  "ContainerCreating",
]);
/** Reasons of what holds, with a reservation. */
const RESERVED = new Set(["PassedWithWarnings", "SomeReady", "ReplicasIgnored", "ReplicasNotRead"]);
/** Reasons of what does not hold because somebody set a limit. */
const LIMITED = new Set(["AtMaximum", "BudgetLimited", "BudgetBelowMin"]);
/** Reasons of a service without engines that is as it should be. */
const ASLEEP = new Set(["ScaledToZero", "Sleeping"]);
const RANK: Record<Tone, number> = { bad: 0, warn: 1, busy: 2, unknown: 3, good: 4 };

export function tone({ type, status, reason = "" }: Condition): Tone {
  if (type === "Progressing") {
    if (status === "True") return "busy";
    if (status === "Unknown") return "warn"; // paused, or outside the window
    return reason === "Complete" ? "good" : "bad";
  }
  if (type === "Reconciling") return status === "False" ? "good" : status === "True" ? "busy" : "unknown";
  if (status === "Unknown")
    return ON_ITS_WAY.has(reason)
      ? reason === "Checking"
        ? "busy"
        : "unknown"
      : type === "Scaling"
        ? "warn"
        : "unknown";
  if (GOOD_WHEN_FALSE.has(type)) return status === "False" ? "good" : "bad";
  if (status === "True") return RESERVED.has(reason) ? "warn" : "good";
  if (ASLEEP.has(reason)) return "good";
  if (LIMITED.has(reason) || type === "SpeculationEffective") return "warn";
  return ON_ITS_WAY.has(reason) ? "busy" : "bad";
}

export function conditionTree(conditions: Condition[]): Tree {
  const judged = conditions.map((condition) => ({ condition, tone: tone(condition) }));
  const place = (kinds: string[]) => (each: Judged) => {
    const at = kinds.indexOf(each.condition.type);
    return at < 0 ? kinds.length : at;
  };
  const sorted = (list: Judged[], kinds: string[]) => {
    const at = place(kinds);
    return list.sort((a, b) => RANK[a.tone] - RANK[b.tone] || at(a) - at(b));
  };
  const isNeeded = (each: Judged) => NEEDED.includes(each.condition.type);
  return {
    root: judged.find((each) => each.condition.type === "Ready") ?? null,
    needed: sorted(judged.filter(isNeeded), NEEDED),
    besides: sorted(
      judged.filter((each) => each.condition.type !== "Ready" && !isNeeded(each)),
      BESIDES,
    ),
  };
}

/** The class of `.badge` for a tone. */
export const BADGE: Record<Tone, string> = { good: "ok", busy: "info", warn: "warn", bad: "bad", unknown: "" };
