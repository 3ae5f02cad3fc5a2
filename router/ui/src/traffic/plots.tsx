import { useMemo } from "preact/hooks";
import { duration, number, percent, plainDuration, short } from "../state/format";
import type { Point } from "../state/types";
import { type Line, Plot } from "./plot";
import { columns, keysOf, OTHER, type Pick, stacked } from "./model/series";

const QUANTILES: Line[] = [
  { label: "p50", color: "--c3" },
  { label: "p90", color: "--c1" },
  { label: "p99", color: "--c2" },
];
const RATE: Line[] = [
  { label: "requests/s", color: "--c1", filled: true },
  { label: "errors/s", color: "--bad" },
];
const LOAD: Line[] = [
  { label: "in flight", color: "--c1", filled: true },
  { label: "queue", color: "--c2" },
];
const SHARES: Line[] = [
  { label: "prefix cache hits", color: "--c3", filled: true },
  { label: "draft tokens accepted", color: "--c5" },
];
const KEY_COLORS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8", "--c9", "--c10"];

export function Plots({ points }: { points: Point[] }) {
  return (
    <div class="plots">
      <Simple points={points} title="Requests" lines={RATE} picks={RATE_PICKS} format={number} axis={short} least={1} />
      <Simple
        points={points}
        title="In flight and queue"
        lines={LOAD}
        picks={LOAD_PICKS}
        format={number}
        axis={short}
        least={4}
      />
      <Tokens points={points} />
      <Simple
        points={points}
        title="Time to first token (TTFT)"
        lines={QUANTILES}
        picks={TTFT_PICKS}
        format={duration}
        axis={plainDuration}
        least={0.01}
      />
      <Simple
        points={points}
        title="Time per output token (TPOT)"
        lines={QUANTILES}
        picks={TPOT_PICKS}
        format={duration}
        axis={plainDuration}
        least={0.001}
      />
      <Simple
        points={points}
        title="Cache hits and speculation"
        lines={SHARES}
        picks={SHARE_PICKS}
        format={percent}
        axis={percent}
        most={1}
      />
    </div>
  );
}

const RATE_PICKS: Pick[] = [(point) => point.rate, (point) => point.errors];
const LOAD_PICKS: Pick[] = [(point) => point.inFlight, (point) => point.queue];
const TTFT_PICKS = quantiles("ttft");
const TPOT_PICKS = quantiles("tpot");
const SHARE_PICKS: Pick[] = [(point) => point.prefixHit, (point) => point.acceptance];

function quantiles(name: "ttft" | "tpot"): Pick[] {
  return [0, 1, 2].map((index) => (point) => point[name]?.[index] ?? null);
}

interface SimpleProps {
  points: Point[];
  title: string;
  lines: Line[];
  picks: Pick[];
  format: (value: number | null) => string;
  axis: (value: number) => string;
  least?: number;
  most?: number;
}

function Simple({ points, picks, ...rest }: SimpleProps) {
  const data = useMemo(() => columns(points, picks), [points]);
  return <Plot {...rest} data={data} />;
}

function Tokens({ points }: { points: Point[] }) {
  const keys = useMemo(() => keysOf(points), [points]);
  const named = keys.length ? keys : [""];
  const lines = named.map((key, index) => ({
    label: key || "tokens/s",
    color: key === OTHER ? "--muted" : (KEY_COLORS[index] ?? "--muted"),
  }));
  const data = useMemo(
    () =>
      columns(
        points,
        named.map((key) => (point: Point) => point.tokens[key] ?? 0),
      ),
    [points],
  );
  const drawn = useMemo(() => stacked(points, named), [points]);
  return (
    <Plot
      title={keys.length > 1 || keys[0] ? "Tokens/s by key" : "Tokens/s"}
      lines={lines}
      data={data}
      drawn={drawn}
      format={number}
      axis={short}
      least={1}
    />
  );
}
