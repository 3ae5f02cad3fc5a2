import { plainDuration } from "../state/format";
import { tokensPerSecond } from "./model/response";
import type { Stats, Turn } from "./model/types";

const ENDS: Record<string, string> = {
  length: "cut at the token limit",
  stopped: "stopped",
  content_filter: "withheld",
  abort: "aborted",
};

/** Times and counts of a turn, live while it grows, and why it ended where that is not by itself. */
export function StatsLine({ turn }: { turn: Turn }) {
  const parts = turn.stats ? describe(turn.stats) : [];
  const end = turn.finish && ENDS[turn.finish];
  if (!parts.length && !end) return null;
  return (
    <span class="stats">
      {parts.map(([text, title]) => (
        <span key={title} title={title}>
          {text}
        </span>
      ))}
      {end && <span class={turn.finish === "length" ? "badge warn" : "badge"}>{end}</span>}
    </span>
  );
}

function describe(stats: Stats): [string, string][] {
  const speed = tokensPerSecond(stats);
  const parts: [string, string][] = [];
  if (stats.ttft !== null) {
    parts.push([`TTFT ${plainDuration(stats.ttft)}`, "Time to first token, as this browser saw it"]);
  }
  if (speed !== null) parts.push([`${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s`, "Tokens a second after the first"]);
  if (stats.tokens !== null) parts.push([`${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`, "Completion tokens"]);
  if (stats.promptTokens !== null) {
    const cached = stats.cachedTokens ? `, ${stats.cachedTokens} cached` : "";
    parts.push([`prompt ${stats.promptTokens}${cached}`, "Prompt tokens, and those found in the prefix cache"]);
  }
  return parts;
}
