/** Errors in words. */

import type { Chunk } from "./response";
import type { Failure } from "./types";

const TITLES: Record<number, string> = {
  400: "The service refused the request",
  401: "The API key was not accepted",
  403: "The API key may not do this",
  404: "There is no such model",
  408: "The request took too long",
  413: "The request is too large",
  429: "Too many requests",
  499: "The request was cancelled",
  500: "The engine failed",
  502: "No engine could be reached",
  503: "The service is not ready or too busy",
  504: "No engine responded in time",
};

/** Images of a conversation are sent again with each of its messages. */
const TOO_LARGE = "Send fewer or smaller images, or less text: edit a message, or begin another chat.";

/** A response other than 200, whose body is OpenAI's error where an engine or the router wrote it. */
export async function failureOf(response: Response): Promise<Failure> {
  const text = await response.text().catch(() => "");
  let error: Chunk["error"];
  try {
    error = (JSON.parse(text) as Chunk).error;
  } catch {
    // a proxy's page
  }
  const retry = Number(response.headers.get("retry-after"));
  const message = error?.message ?? (text.slice(0, 300) || response.statusText);
  const advice = response.status === 413 ? TOO_LARGE : retry > 0 ? `Try again in ${retry} s.` : "";
  const end = advice && message && !/[.!?]$/.test(message) ? "." : "";
  return {
    title: TITLES[response.status] ?? `The service answered with ${response.status}`,
    message: `${message}${end} ${advice}`.trim(),
    code: error?.code ?? error?.type ?? null,
    param: error?.param ?? null,
    status: response.status,
    requestId: response.headers.get("x-request-id"),
  };
}

/** An error that came within the stream. */
export function failureInStream(error: NonNullable<Chunk["error"]>, requestId: string | null): Failure {
  return {
    title: "The response broke off",
    message: error.message ?? "The engine gave no reason.",
    code: error.code ?? error.type ?? null,
    param: error.param ?? null,
    status: null,
    requestId,
  };
}

export function lostConnection(begun: boolean, requestId: string | null): Failure {
  return {
    title: begun ? "The response broke off" : "The service cannot be reached",
    message: begun
      ? "The connection ended before the response was complete. What came before it is kept."
      : "No connection to the router. Is it running, and the network there?",
    code: null,
    param: null,
    status: null,
    requestId,
  };
}

/** What was to be sent and could not be made. */
export function unsendable(message: string): Failure {
  return { title: "The request was not sent", message, code: null, param: null, status: null, requestId: null };
}
