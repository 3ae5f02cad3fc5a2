import type { Point, Request, State } from "./types";

export const MAX_POINTS = 300;
export const MAX_REQUESTS = 200;

/**
 * The state after an update: members that are in it replace those of before, points are appended, requests replaced by
 * id.
 */
export function merge(state: State, update: Partial<State>): State {
  const merged: State = { ...state, ...update };
  if (update.traffic) {
    merged.traffic = {
      interval: update.traffic.interval,
      points: mergePoints(state.traffic.points, update.traffic.points),
    };
  }
  if (update.requests) merged.requests = mergeRequests(state.requests, update.requests);
  return merged;
}

function mergePoints(points: Point[], added: Point[]): Point[] {
  const last = points.at(-1)?.time ?? -Infinity;
  return [...points, ...added.filter((point) => point.time > last)].slice(-MAX_POINTS);
}

function mergeRequests(requests: Request[], changed: Request[]): Request[] {
  if (!changed.length) return requests;
  const byId = new Map(requests.map((request) => [request.id, request]));
  for (const request of changed) byId.set(request.id, request); // a row keeps its place, a new one comes last
  return [...byId.values()].slice(-MAX_REQUESTS);
}
