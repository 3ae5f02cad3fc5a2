import { useState } from "preact/hooks";
import { Button } from "../components/button";
import { Icon } from "../components/icons";
import type { ToolCall } from "./model/types";

/** The calls of a turn. Where it is the last one, the user says what they return. */
export function ToolCalls({
  calls,
  onReturn,
}: {
  calls: ToolCall[];
  onReturn?: ((results: string[]) => void) | undefined;
}) {
  const [results, setResults] = useState<string[]>([]);
  const complete = calls.every((_, at) => results[at]?.trim());
  return (
    <form
      class="tool-calls"
      aria-label="Tool calls"
      onSubmit={(event) => {
        event.preventDefault();
        if (complete) onReturn?.(results);
      }}
    >
      {calls.map((call, at) => (
        <div key={call.id || at} class="tool-call card">
          <div class="tool-head">
            <Icon name="tool" />
            <span class="mono">{call.name}</span>
          </div>
          <pre tabIndex={0}>{pretty(call.arguments)}</pre>
          {onReturn && (
            <label class="field">
              <span>What {call.name} returns</span>
              <textarea
                rows={2}
                spellcheck={false}
                class="mono"
                value={results[at] ?? ""}
                onInput={(event) => {
                  const next = [...results];
                  next[at] = event.currentTarget.value;
                  setResults(next);
                }}
              />
            </label>
          )}
        </div>
      ))}
      {onReturn && (
        <Button type="submit" kind="primary" disabled={!complete}>
          Continue with {calls.length === 1 ? "this result" : "these results"}
        </Button>
      )}
    </form>
  );
}

/** JSON as one reads it; what is not JSON (yet) as it is. */
function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
