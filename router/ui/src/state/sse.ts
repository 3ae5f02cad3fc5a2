/**
 * Server-sent events as HTML defines them (https://html.spec.whatwg.org/multipage/server-sent-events.html), read by
 * fetch: EventSource sends no Authorization header.
 */

export interface ServerEvent {
  event: string;
  data: string;
}

/** Takes text in pieces of any size; returns the events that are complete. */
export class EventParser {
  private rest = "";
  private event = "";
  private data: string[] = [];

  push(text: string): ServerEvent[] {
    const events: ServerEvent[] = [];
    this.rest += text;
    let start = 0;
    for (;;) {
      const end = this.rest.slice(start).search(/\r\n|\n|\r(?!$)/);
      if (end < 0) break;
      const line = this.rest.slice(start, start + end);
      start += end + (this.rest.startsWith("\r\n", start + end) ? 2 : 1);
      const event = this.line(line);
      if (event) events.push(event);
    }
    this.rest = this.rest.slice(start);
    return events;
  }

  private line(line: string): ServerEvent | null {
    if (line === "") {
      if (!this.data.length) {
        this.event = "";
        return null;
      }
      const event = { event: this.event || "message", data: this.data.join("\n") };
      this.event = "";
      this.data = [];
      return event;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return null; // a comment: keep-alive
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (field === "event") this.event = value;
    else if (field === "data") this.data.push(value);
    return null;
  }
}

/** The events of a response's body, as they come. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
