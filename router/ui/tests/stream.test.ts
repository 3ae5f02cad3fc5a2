import { afterEach, beforeEach, expect, test, vi } from "vitest";

const SNAPSHOT = 'event: snapshot\ndata: {"time": 1, "service": "köln"}\n\n';
const encoder = new TextEncoder();

/** A connection to the stream: what the page asked for, and what it is told. */
interface Opened {
  signal: AbortSignal;
  key: string | null;
  say(bytes: Uint8Array): void;
  end(): void;
}

let opened: Opened[];
let respond: (body: ReadableStream<Uint8Array>) => Response | Promise<Response>;
let page: EventTarget & { hidden: boolean };

async function start() {
  vi.resetModules();
  const [{ follow, connection, liveState }, { setApiKey }] = await Promise.all([
    import("../src/state/stream"),
    import("../src/state/auth"),
  ]);
  follow();
  await settle();
  return { connection, liveState, setApiKey };
}

const settle = () => vi.advanceTimersByTimeAsync(0);
const seconds = (count: number) => vi.advanceTimersByTimeAsync(count * 1000);

function see(hidden: boolean) {
  page.hidden = hidden;
  page.dispatchEvent(new Event("visibilitychange"));
}

beforeEach(() => {
  vi.useFakeTimers();
  opened = [];
  respond = (body) => new Response(body);
  page = Object.assign(new EventTarget(), { hidden: false });
  const session = new Map<string, string>();
  vi.stubGlobal("document", page);
  vi.stubGlobal("sessionStorage", {
    getItem: (name: string) => session.get(name) ?? null,
    setItem: (name: string, value: string) => session.set(name, value),
    removeItem: (name: string) => session.delete(name),
  });
  vi.stubGlobal("fetch", (_: string, { signal, headers }: { signal: AbortSignal; headers: Headers }) => {
    let out!: ReadableStreamDefaultController<Uint8Array>;
    const body = new ReadableStream<Uint8Array>({ start: (controller) => void (out = controller) });
    signal.addEventListener("abort", () => out.error(signal.reason));
    opened.push({
      signal,
      key: headers.get("authorization"),
      say: (bytes) => out.enqueue(bytes),
      end: () => out.close(),
    });
    const aborted = new Promise<Response>((_, reject) =>
      signal.addEventListener("abort", () => reject(signal.reason)),
    );
    return Promise.race([respond(body), aborted]);
  });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("characters that come in pieces are whole", async () => {
  const { connection, liveState } = await start();
  for (const byte of encoder.encode(SNAPSHOT)) opened[0]!.say(Uint8Array.of(byte));
  await settle();
  expect(connection.get()).toBe("open");
  expect(liveState.get()).toMatchObject({ service: "köln" });
});

test("a lost stream is opened again, ever later while it fails", async () => {
  const { connection } = await start();
  opened[0]!.say(encoder.encode(SNAPSHOT));
  await settle();
  respond = () => new Response(null, { status: 502 });
  opened[0]!.end();
  await settle();
  expect(connection.get()).toBe("waiting");
  await seconds(20);
  expect(opened.length).toBeGreaterThan(3);
  expect(opened.length).toBeLessThan(8);
  const failed = opened.length;
  await seconds(60);
  expect(opened.length - failed).toBeLessThan(7);
});

test("a router that takes the connection and does not respond is left", async () => {
  respond = () => new Promise(() => {});
  const { connection } = await start();
  await seconds(31);
  expect(opened[0]!.signal.aborted).toBe(true);
  expect(connection.get()).toBe("waiting");
  await seconds(3);
  expect(opened).toHaveLength(2);
});

test("a page in the background lets its stream go, and takes it up when it is seen", async () => {
  page.hidden = true;
  const { connection } = await start();
  opened[0]!.say(encoder.encode(SNAPSHOT));
  await seconds(20); // within the silence that a connection may keep
  opened[0]!.say(encoder.encode(": keep-alive\n\n"));
  await seconds(20);
  opened[0]!.say(encoder.encode(": keep-alive\n\n"));
  await seconds(21);
  expect(opened[0]!.signal.aborted).toBe(true);
  await seconds(3600);
  expect(opened).toHaveLength(1);
  see(false);
  await settle();
  expect(opened).toHaveLength(2);
  opened[1]!.say(encoder.encode(SNAPSHOT));
  await settle();
  expect(connection.get()).toBe("open");
});

test("a page in the background does not reconnect for ever", async () => {
  respond = () => new Response(null, { status: 503, headers: { "retry-after": "120" } });
  await start();
  see(true);
  respond = (body) => new Response(body);
  await seconds(3600);
  expect(opened).toHaveLength(1);
});

test("without a valid key nothing is shown, and the same key may be tried again", async () => {
  const { connection, liveState, setApiKey } = await start();
  opened[0]!.say(encoder.encode(SNAPSHOT));
  await settle();
  respond = () => new Response(null, { status: 401 });
  opened[0]!.end();
  await seconds(2);
  expect(connection.get()).toBe("unauthorized");
  expect(liveState.get()).toBeNull();
  setApiKey("sk-a");
  await settle();
  respond = (body) => new Response(body);
  setApiKey("sk-a");
  await settle();
  expect(opened.map((one) => one.key)).toEqual([null, null, "Bearer sk-a", "Bearer sk-a"]);
});

test("a key that no header can hold is refused with a reason", async () => {
  const { keyProblem } = await import("../src/state/auth");
  expect(keyProblem("sk-Az09._~+/=")).toBeNull();
  for (const wrong of ["sk-ключ", "sk a", "sk\n"]) expect(keyProblem(wrong)).toContain("ASCII");
});
