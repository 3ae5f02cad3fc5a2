import { fetchWithKey, keysGiven } from "./auth";
import { merge } from "./merge";
import { readEvents } from "./sse";
import { createStore } from "./store";
import type { State } from "./types";

/** "off": this router sends no live data (404), and is not asked again. */
export type Connection = "connecting" | "open" | "waiting" | "unauthorized" | "off";

export const liveState = createStore<State | null>(null);
export const connection = createStore<Connection>("connecting");

const FIRST_PAUSE = 1; // seconds
const LONGEST_PAUSE = 15;
/** A page that nobody has seen for so many seconds lets its stream go. */
const HIDDEN = 60;
/** Keep-alives come more often: a connection on which nothing comes for so many seconds is dead. */
const SILENCE = 30;

/** Follow `/ui/stream` until the page closes, with a new connection after each failure. */
export function follow(): void {
  let abort: AbortController | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let hiding: ReturnType<typeof setTimeout> | undefined;
  let failures = 0;

  const again = (seconds: number) => {
    clearTimeout(timer);
    timer = setTimeout(connect, seconds * 1000);
  };

  async function connect(): Promise<void> {
    clearTimeout(timer);
    abort?.abort();
    const controller = new AbortController();
    abort = controller;
    if (connection.get() !== "waiting") connection.set("connecting");
    failures += 1;
    let least = 0;
    let silence: ReturnType<typeof setTimeout> | undefined;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => controller.abort(), SILENCE * 1000);
    };
    try {
      heard();
      const response = await fetchWithKey("/ui/stream", { signal: controller.signal, cache: "no-store" });
      if (abort !== controller) return;
      if (response.status === 401 || response.status === 404) {
        liveState.set(null); // what was shown is not for whoever has no valid key any more
        return connection.set(response.status === 401 ? "unauthorized" : "off");
      }
      if (response.ok && response.body) {
        const body = response.body.pipeThrough(
          new TransformStream<Uint8Array, Uint8Array>({
            transform(chunk, out) {
              heard();
              out.enqueue(chunk);
            },
          }),
        );
        for await (const { event, data } of readEvents(body)) {
          if (abort !== controller) return;
          receive(event, data);
          failures = 0;
        }
      } else {
        least = Number(response.headers.get("retry-after")) || 0;
        await response.body?.cancel();
      }
    } catch {
      // The network's fault, or ours by abort: what matters is whether somebody else connects already
    } finally {
      clearTimeout(silence);
    }
    if (abort !== controller) return;
    connection.set("waiting");
    if (document.hidden) return;
    const pause = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** Math.max(0, failures - 1));
    again(Math.max(least, pause * (0.75 + Math.random() / 2))); // not all viewers of a router at once
  }

  keysGiven.subscribe(() => {
    failures = 0;
    liveState.set(null);
    connection.set("connecting");
    void connect();
  });
  const visibilityChanged = () => {
    clearTimeout(hiding);
    if (document.hidden) {
      hiding = setTimeout(() => {
        clearTimeout(timer);
        abort?.abort();
      }, HIDDEN * 1000);
    } else if (connection.get() === "waiting") {
      failures = 0;
      void connect();
    }
  };
  document.addEventListener("visibilitychange", visibilityChanged);
  void connect();
  if (document.hidden) visibilityChanged(); // opened in the background
}

function receive(event: string, data: string): void {
  const state = liveState.get();
  if (event === "snapshot") liveState.set(JSON.parse(data) as State);
  else if (event === "update" && state) liveState.set(merge(state, JSON.parse(data) as Partial<State>));
  else return;
  connection.set("open");
}
