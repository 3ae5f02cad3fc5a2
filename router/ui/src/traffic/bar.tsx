import { duration } from "../state/format";
import type { Request } from "../state/types";
import { retries } from "./model/filter";
import { bars, clamp, PHASES } from "./model/waterfall";

interface Props {
  request: Request;
  now: number;
  /** Seconds that the whole width stands for. */
  scale: number;
}

/** A request's time: where it waited, what the first token took, how long tokens came; and its retries as marks. */
export function WaterfallBar({ request, now, scale }: Props) {
  const share = (seconds: number): number => clamp(seconds / scale, 0, 1) * 100;
  const shown = bars(request, now);
  return (
    <span class="waterfall" role="img" aria-label={words(request, now)}>
      {shown.map((bar) => (
        <span
          key={bar.phase}
          class={`phase phase-${bar.phase} ${bar.open ? "grows" : ""}`}
          style={{
            left: `${share(bar.from).toFixed(2)}%`,
            width: `${Math.max(0, share(bar.to) - share(bar.from)).toFixed(2)}%`,
          }}
        />
      ))}
      {retries(request).map((attempt, index) => (
        <span key={index} class="attempt" style={{ left: `${share(attempt.at).toFixed(2)}%` }} />
      ))}
      {(shown.at(-1)?.to ?? 0) > scale && <span class="beyond">›</span>}
    </span>
  );
}

function words(request: Request, now: number): string {
  const parts = bars(request, now).map(
    (bar) => `${PHASES[bar.phase]} ${duration(bar.to - bar.from)}${bar.open ? " so far" : ""}`,
  );
  for (const attempt of retries(request)) parts.push(`${attempt.outcome} at ${duration(attempt.at)}`);
  return parts.join(", ") || "just started";
}
