import { keyWanted } from "../state/auth";
import { useStore } from "../state/store";
import { connection, type Connection } from "../state/stream";
import { Button } from "./button";

const TEXTS: Record<Connection, [string, string]> = {
  connecting: ["Connecting", "The first data comes in a moment."],
  open: ["Connecting", "The first data comes in a moment."],
  waiting: ["The router cannot be reached, or has too many viewers", "This page tries again by itself."],
  unauthorized: ["An API key is needed", "This router shows live data to those with a key only."],
  off: ["No live data", "This router sends none. Chat works all the same."],
};

/** In place of a page that shows live data, while there is none. */
export function NoData({ title }: { title: string }) {
  const state = useStore(connection);
  const [what, why] = TEXTS[state];
  return (
    <div class="no-data">
      <h2>{title}</h2>
      <p>{what}</p>
      <p class="muted">{why}</p>
      {state === "unauthorized" && (
        <Button kind="primary" icon="key" onClick={() => keyWanted.set(true)}>
          Enter a key
        </Button>
      )}
    </div>
  );
}
