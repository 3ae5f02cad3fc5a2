import { apiKey, fetchWithKey } from "./auth";
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
/** Keep-alives come more often: a connection that says nothing for so long is dead. */
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
    let pause = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** failures) * (0.75 + Math.random() / 2);
    failures += 1;
    let silence: ReturnType<typeof setTimeout> | undefined;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => controller.abort(), SILENCE * 1000);
    };
    try {
      const response = await fetchWithKey("/ui/stream", { signal: controller.signal, cache: "no-store" });
      if (response.status === 401) return connection.set("unauthorized");
      if (response.status === 404) return connection.set("off");
      if (response.ok && response.body) {
        heard();
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
          pause = FIRST_PAUSE;
        }
      } else {
        pause = Math.max(pause, Number(response.headers.get("retry-after")) || 0);
        await response.body?.cancel();
      }
    } catch {
      // The network's fault, or ours by abort: what matters is whether somebody else connects already
    } finally {
      clearTimeout(silence);
    }
    if (abort !== controller) return;
    connection.set("waiting");
    if (!document.hidden) again(pause);
  }

  apiKey.subscribe(() => {
    failures = 0;
    liveState.set(null);
    connection.set("connecting");
    void connect();
  });
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => abort?.abort(), HIDDEN * 1000);
    else if (connection.get() === "waiting") {
      failures = 0;
      void connect();
    }
  });
  void connect();
}

function receive(event: string, data: string): void {
  const state = liveState.get();
  if (event === "snapshot") liveState.set(JSON.parse(data) as State);
  else if (event === "update" && state) liveState.set(merge(state, JSON.parse(data) as Partial<State>));
  else return;
  connection.set("open");
}
