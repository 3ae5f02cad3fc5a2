import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, DASH, minute } from "../state/format";
import { color, shownTheme } from "../state/theme";
import { type Column, summarize, tableRows } from "./model/series";

export interface Line {
  label: string;
  /** A colour of `styles/tokens.css`. */
  color: string;
  /** The area below it is tinted. */
  filled?: boolean;
}

interface Props {
  title: string;
  lines: Line[];
  /** Times, then a column for each line. */
  data: [number[], ...Column[]];
  /** What is drawn where that is not the same: sums of columns, one above the other. */
  drawn?: [number[], ...Column[]];
  format: (value: number | null) => string;
  axis: (value: number) => string;
  /** The least that the scale shows. */
  least?: number;
  most?: number;
}

const HEIGHT = 150;
/** Seconds that are shown. */
const SPAN = 300;
/** Seconds of a row in the table. */
const STEP = 10;

/** A live plot with its numbers in a legend, in one sentence for screen readers, and in a table. */
export function Plot({ title, lines, data, drawn, format, axis, least = 1, most }: Props) {
  const heading = useId();
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [hovered, setHovered] = useState<number | null>(null);
  const shown = drawn ?? data;
  const shape = lines.map((line) => `${line.label} ${line.color}`).join("\n");

  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const made = new uPlot(
      options(lines, element.clientWidth, axis, least, most, Boolean(drawn), setHovered),
      shown as uPlot.AlignedData,
      element,
    );
    plot.current = made;
    const sizes = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    sizes.observe(element);
    const stop = shownTheme.subscribe(() => made.redraw(false, true));
    return () => {
      stop();
      sizes.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    plot.current?.setData(shown as uPlot.AlignedData);
  }, [shown]);

  const at = hovered !== null && hovered < data[0].length ? hovered : data[0].length - 1;
  const time = data[0][at];
  return (
    <figure class="card plot" aria-labelledby={heading}>
      <figcaption>
        <h3 id={heading}>{title}</h3>
        <span class="plot-time">{hovered !== null && time !== undefined ? clock(time) : "now"}</span>
      </figcaption>
      <ul class="legend">
        {lines.map((line, index) => (
          <li key={line.label}>
            <svg width="10" height="10" aria-hidden="true">
              <rect width="10" height="10" rx="2" fill={`var(${line.color})`} />
            </svg>
            <span class="legend-label">{line.label}</span>
            <span class="legend-value">{format(data[index + 1]?.[at] ?? null)}</span>
          </li>
        ))}
      </ul>
      <div class="plot-canvas" ref={host} role="img" aria-label={`${title}: ${sentence(lines, data, format)}`} />
      <Table title={title} lines={lines} data={data} format={format} />
    </figure>
  );
}

/** What the plot shows, in words. */
export function sentence(lines: Line[], data: Props["data"], format: Props["format"]): string {
  return lines
    .map((line, index) => {
      const { now, mean, highest } = summarize(data[index + 1] ?? []);
      return highest === null
        ? `${line.label} not known`
        : `${line.label} now ${format(now)}, mean ${format(mean)}, highest ${format(highest)}`;
    })
    .join("; ");
}

function Table({ title, lines, data, format }: Pick<Props, "title" | "lines" | "data" | "format">) {
  const [open, setOpen] = useState(false);
  const rows = useMemo(() => (open ? tableRows(data, STEP) : []), [open, data]);
  return (
    <details class="plot-table" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        As a table<span class="offscreen"> of {title}</span>
      </summary>
      {open && (
        <div class="table-scroll" tabIndex={0} role="region" aria-label={`${title}, as a table`}>
          <table class="data">
            <thead>
              <tr>
                <th scope="col">{STEP} s from</th>
                {lines.map((line) => (
                  <th key={line.label} scope="col" class="num">
                    {line.label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.time}>
                  <th scope="row">{clock(row.time)}</th>
                  {row.values.map((value, index) => (
                    <td key={lines[index]?.label} class="num">
                      {value === null ? DASH : format(value)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}

function options(
  lines: Line[],
  width: number,
  axis: Props["axis"],
  least: number,
  most: number | undefined,
  isStacked: boolean,
  hover: (index: number | null) => void,
): uPlot.Options {
  const grid = { stroke: () => color("--grid"), width: 1 };
  const line = { stroke: () => color("--muted"), font: "11px system-ui, sans-serif", grid, ticks: { show: false } };
  const made: uPlot.Options = {
    width,
    height: HEIGHT,
    padding: [8, 18, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "traffic" }, points: { size: 6 } },
    scales: {
      x: { range: (_, __, last) => [last - SPAN, last] },
      y: { range: (_, __, highest) => [0, most ?? Math.max(least, (highest ?? 0) * 1.08)] },
    },
    axes: [
      { ...line, size: 24, space: 54, incrs: [60, 120, 300], values: (_, times) => times.map((time) => minute(time)) },
      { ...line, size: 58, space: 32, gap: 6, values: (_, values) => values.map((value) => axis(value)) },
    ],
    series: [{}, ...lines.map((each) => series(each, isStacked))],
    hooks: { setCursor: [(made) => hover(made.cursor.idx ?? null)] },
  };
  // The band between two sums has the upper one's colour
  if (isStacked)
    made.bands = lines.slice(1).map((_, index) => ({ series: [index + 2, index + 1] as [number, number] }));
  return made;
}

function series(line: Line, isStacked: boolean): uPlot.Series {
  const tint = () => transparent(color(line.color), isStacked ? 0.55 : 0.12);
  return {
    label: line.label,
    stroke: () => color(line.color),
    width: isStacked ? 1 : 1.5,
    ...(isStacked || line.filled ? { fill: tint } : {}),
    points: { show: false },
    spanGaps: false,
  };
}

/** A colour `#rrggbb` of the tokens with an alpha channel. */
function transparent(hex: string, alpha: number): string {
  return `${hex}${Math.round(alpha * 255)
    .toString(16)
    .padStart(2, "0")}`;
}
