import { useRef, useState } from "preact/hooks";
import type { Token } from "./model/types";

const percent = (logprob: number) => {
  const share = Math.exp(logprob) * 100;
  return share >= 99.95
    ? "100 %"
    : share >= 10
      ? `${share.toFixed(1)} %`
      : share >= 0.01
        ? `${share.toPrecision(2)} %`
        : "< 0.01 %";
};

/** 0 (unlikely) to 5 (nearly certain). */
const level = (logprob: number) => {
  const share = Math.exp(logprob);
  return [0.05, 0.2, 0.5, 0.8, 0.95].filter((bound) => share >= bound).length;
};

const visible = (text: string) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "∅";

/** Each token coloured by its probability; its alternatives on hover and on focus. One tab stop, arrow keys within. */
export function Tokens({ tokens }: { tokens: Token[] }) {
  const [at, setAt] = useState<number | null>(null);
  const [stop, setStop] = useState(0);
  const list = useRef<HTMLDivElement>(null);
  const go = (to: number) => {
    const next = Math.max(0, Math.min(tokens.length - 1, to));
    setStop(next);
    (list.current?.children[next] as HTMLElement | undefined)?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const to = { ArrowRight: stop + 1, ArrowLeft: stop - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      go(to);
    } else if (event.key === "Escape" && at !== null) {
      event.stopPropagation();
      setAt(null);
    }
  };
  const shown = at === null ? undefined : tokens[at];
  return (
    <div class="token-view">
      <div
        ref={list}
        class="token-list"
        role="listbox"
        aria-label="Tokens with their probabilities"
        aria-orientation="horizontal"
        onKeyDown={onKeyDown}
        onMouseLeave={() => setAt(null)}
      >
        {tokens.map((token, index) => (
          <span
            key={index}
            role="option"
            aria-selected={index === at}
            aria-label={describe(token)}
            tabIndex={index === Math.min(stop, tokens.length - 1) ? 0 : -1}
            class={`token level-${level(token.logprob)}`}
            onMouseEnter={() => setAt(index)}
            onFocus={() => {
              setStop(index);
              setAt(index);
            }}
            onBlur={() => setAt(null)}
          >
            {token.text}
          </span>
        ))}
      </div>
      {shown && at !== null && (
        <Alternatives token={shown} anchor={list.current?.children[at] as HTMLElement | undefined} />
      )}
      <div class="token-legend" aria-hidden="true">
        <span>probability</span>
        {["< 5 %", "5", "20", "50", "80", "≥ 95 %"].map((name, index) => (
          <span key={name} class={`token level-${index}`}>
            {name}
          </span>
        ))}
      </div>
    </div>
  );
}

const describe = (token: Token) =>
  `${visible(token.text)}, ${percent(token.logprob)}. ` +
  token.top
    .filter(([text]) => text !== token.text)
    .map(([text, logprob]) => `${visible(text)} ${percent(logprob)}`)
    .join(", ");

function Alternatives({ token, anchor }: { token: Token; anchor: HTMLElement | undefined }) {
  const parent = anchor?.offsetParent as HTMLElement | null;
  const left = Math.max(0, Math.min(anchor?.offsetLeft ?? 0, (parent?.clientWidth ?? 240) - 230));
  const top = (anchor?.offsetTop ?? 0) + (anchor?.offsetHeight ?? 20) + 4;
  const rows = token.top.some(([text]) => text === token.text)
    ? token.top
    : [...token.top, [token.text, token.logprob] as [string, number]];
  return (
    <div class="alternatives" style={{ left, top }} aria-hidden="true">
      {rows.map(([text, logprob], index) => (
        <div key={index} class={text === token.text ? "chosen" : ""}>
          <code>{visible(text)}</code>
          <span class="bar">
            <span style={{ width: `${Math.exp(logprob) * 100}%` }} />
          </span>
          <span>{percent(logprob)}</span>
        </div>
      ))}
    </div>
  );
}
