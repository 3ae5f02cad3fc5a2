import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock, count, DASH, duration, plainDuration } from "../state/format";
import type { Request } from "../state/types";
import { WaterfallBar } from "./bar";
import { isError } from "./model/filter";
import { shortReason } from "./model/reason";
import { usageUnknown } from "./model/usage";
import { StatusBadge } from "./status";
import { scaleOf, took } from "./model/waterfall";
import { slice } from "./model/window";

const NARROW = matchMedia("(width <= 760px)");
const ROW = 34;
const ROW_NARROW = 64;
/** Rows that are in sight at most. */
const VIEW = 15;

interface Props {
  /** Newest first. */
  requests: Request[];
  now: number;
  /** What all engines' names begin with, which is left out. */
  prefix: string;
  /** The one whose details are shown: its row stays, since the focus returns there. */
  opened: string | null;
  onOpen: (id: string) => void;
}

/** The last requests: only rows in sight exist, each keeps its place under the reader while new ones come. */
export function Requests({ requests, now, prefix, opened, onOpen }: Props) {
  const height = useNarrow() ? ROW_NARROW : ROW;
  const scroller = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [focused, setFocused] = useState<string | null>(null);
  const scale = useMemo(() => scaleOf(requests, now), [requests, now]);
  const view = Math.min(requests.length, VIEW) * height;
  useStaysInPlace(scroller, requests, height);
  const { first, last } = slice(requests.length, height, top, view);
  const shown = requests.slice(first, last).map((request, index) => ({ request, index: first + index }));
  const keep = focused ?? opened;
  const held = keep === null ? -1 : requests.findIndex((request) => request.id === keep);
  const kept = requests[held];
  if (kept && (held < first || held >= last)) shown.push({ request: kept, index: held }); // or the focus would be lost

  const wanted = useRef<string | null>(null);
  const before = useRef(opened);
  useLayoutEffect(() => {
    const closed = before.current !== null && opened === null && document.activeElement === document.body;
    before.current = opened;
    // The row with the focus was the oldest and is gone: that which is now the oldest gets it
    if ((focused !== null && held < 0) || closed) {
      wanted.current = requests.at(-1)?.id ?? null;
      setFocused(wanted.current);
    }
    const id = wanted.current;
    const button = id === null ? null : scroller.current?.querySelector<HTMLElement>(`[data-id="${CSS.escape(id)}"]`);
    if (!button) return;
    wanted.current = null;
    button.focus({ preventScroll: true });
  });

  const move = (event: KeyboardEvent, index: number) => {
    const to = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: requests.length - 1 }[event.key];
    if (to === undefined || !requests[to] || !scroller.current) return;
    event.preventDefault();
    const element = scroller.current;
    if (to * height < element.scrollTop) element.scrollTop = to * height;
    else if ((to + 1) * height > element.scrollTop + view) element.scrollTop = (to + 1) * height - view;
    setTop(element.scrollTop);
    wanted.current = requests[to].id;
    setFocused(wanted.current);
  };

  return (
    <div class="requests" role="table" aria-label="Requests" aria-rowcount={requests.length + 1}>
      <div role="rowgroup">
        <div class="request-row request-head" role="row" aria-rowindex={1}>
          <span role="columnheader">Time</span>
          <span role="columnheader" class="r-status">
            Status
          </span>
          <span role="columnheader" class="r-key">
            Key
          </span>
          <span role="columnheader">Model</span>
          <span role="columnheader" class="r-engine">
            Engine
          </span>
          <span role="columnheader" class="r-num r-tokens">
            Tokens
          </span>
          <span role="columnheader" class="r-num r-first">
            TTFT
          </span>
          <span role="columnheader" class="r-num">
            Total
          </span>
          <span role="columnheader" class="r-bar scale">
            <span>0</span>
            <span>{plainDuration(scale / 2)}</span>
            <span>{plainDuration(scale)}</span>
          </span>
        </div>
      </div>
      <div
        class="requests-body"
        role="presentation"
        ref={scroller}
        style={{ height: `${view}px` }}
        onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      >
        <div class="requests-all" role="rowgroup" style={{ height: `${requests.length * height}px` }}>
          {shown.map(({ request, index }) => (
            <div
              key={request.id}
              class={`request-row ${isError(request) ? "failed" : ""}`}
              role="row"
              aria-rowindex={index + 2}
              style={{ top: `${index * height}px`, height: `${height}px` }}
              onClick={() => onOpen(request.id)}
            >
              <span role="cell">
                <button
                  type="button"
                  class="request-open"
                  data-id={request.id}
                  aria-haspopup="dialog"
                  aria-label={`${clock(request.started)}: details`}
                  onKeyDown={(event) => move(event, index)}
                  onFocus={() => setFocused(request.id)}
                  onBlur={() => setFocused(null)}
                >
                  {clock(request.started)}
                </button>
              </span>
              <Cells request={request} now={now} scale={scale} prefix={prefix} />
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

function Cells({ request, now, scale, prefix }: { request: Request; now: number; scale: number; prefix: string }) {
  return (
    <>
      <span role="cell" class="r-status">
        <StatusBadge request={request} />
      </span>
      <span role="cell" class="r-key" title={request.key ?? undefined}>
        {request.key ?? DASH}
      </span>
      <span role="cell" class="r-model" title={request.model}>
        {request.model}
      </span>
      <span role="cell" class="r-engine" title={[request.endpoint, request.reason].filter(Boolean).join("\n")}>
        <span class="mono">
          {request.endpoint?.slice(request.endpoint.startsWith(prefix) ? prefix.length : 0) ?? DASH}
        </span>
        {request.reason && <span class="r-why">{shortReason(request.reason)}</span>}
      </span>
      <span role="cell" class="r-num r-tokens" title={usageUnknown(request) ?? "prompt → completion"}>
        {count(request.promptTokens)} → {count(request.completionTokens)}
      </span>
      <span role="cell" class="r-num r-first">
        {duration(request.firstToken)}
      </span>
      <span role="cell" class="r-num">
        {duration(took(request, now))}
      </span>
      <span role="cell" class="r-bar">
        <WaterfallBar request={request} now={now} scale={scale} />
      </span>
    </>
  );
}

function useNarrow(): boolean {
  const [narrow, setNarrow] = useState(NARROW.matches);
  useEffect(() => {
    const changed = () => setNarrow(NARROW.matches);
    NARROW.addEventListener("change", changed);
    return () => NARROW.removeEventListener("change", changed);
  }, []);
  return narrow;
}

/** Where the list is scrolled, rows that come above do not move those in sight. */
function useStaysInPlace(scroller: { current: HTMLDivElement | null }, requests: Request[], height: number): void {
  const before = useRef<Request[]>(requests);
  useLayoutEffect(() => {
    const element = scroller.current;
    const old = before.current;
    before.current = requests;
    if (!element || element.scrollTop < height || old === requests) return;
    const index = Math.floor(element.scrollTop / height);
    const id = old[index]?.id;
    const now = id === undefined ? -1 : requests.findIndex((request) => request.id === id);
    if (now > index) element.scrollTop += (now - index) * height;
  }, [requests]);
}
