import type { ComponentChildren } from "preact";
import { DASH, percent } from "../state/format";

interface Props {
  /** What is measured, for screen readers. */
  label: string;
  /** 0..1; null where it is not known. */
  share: number | null;
  /** Before the bar; the share in percent without it. */
  text?: string;
  after?: ComponentChildren;
  /** In place of all where the share is not known. */
  unknown?: string;
  /** From this share on it is amber, and from `full` on red. */
  high?: number;
  full?: number;
}

/** A number with a bar behind it that shows how much of the whole it is. */
export function Meter({ label, share, text, after, unknown = DASH, high = 0.85, full = 0.95 }: Props) {
  if (share === null) return <span class="unknown">{unknown}</span>;
  const shown = Math.min(1, Math.max(0, share));
  const tone = share >= full ? "bad" : share >= high ? "warn" : "";
  return (
    <span class="meter">
      <span class="meter-text">
        {text ?? percent(share)}
        {after}
      </span>
      <span
        class="meter-track"
        role="meter"
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.round(shown * 100)}
        aria-valuetext={text ?? percent(share)}
      >
        <span class={`meter-fill ${tone}`} style={{ width: `${(shown * 100).toFixed(1)}%` }} />
      </span>
    </span>
  );
}
