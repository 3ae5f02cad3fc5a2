import { expect, test } from "vitest";
import { MAX_POINTS, MAX_REQUESTS, merge } from "../src/state/merge";
import type { Point, Request, State } from "../src/state/types";

const point = (time: number) => ({ time }) as Point;
const request = (id: string, status: number | null = null) => ({ id, status }) as Request;
const state = (points: Point[], requests: Request[]) =>
  ({ time: 1, endpoints: [], traffic: { interval: 1, points }, requests }) as unknown as State;

test("what an update does not hold stays", () => {
  const before = state([point(1)], [request("a")]);
  const after = merge(before, { time: 2 });
  expect(after.time).toBe(2);
  expect(after.requests).toBe(before.requests);
  expect(after.traffic).toBe(before.traffic);
});

test("points are appended once, and the oldest leave", () => {
  const full = state(
    Array.from({ length: MAX_POINTS }, (_, at) => point(at)),
    [],
  );
  const after = merge(full, { traffic: { interval: 1, points: [point(MAX_POINTS - 1), point(MAX_POINTS)] } });
  expect(after.traffic.points.length).toBe(MAX_POINTS);
  expect(after.traffic.points[0]?.time).toBe(1);
  expect(after.traffic.points.at(-1)?.time).toBe(MAX_POINTS);
});

test("a request is replaced where it stands, new ones come last", () => {
  const many = Array.from({ length: MAX_REQUESTS }, (_, at) => request(`r${at}`));
  const after = merge(state([], many), { requests: [request("r5", 200), request("new")] });
  expect(after.requests.length).toBe(MAX_REQUESTS);
  expect(after.requests[4]).toEqual(request("r5", 200));
  expect(after.requests.at(-1)?.id).toBe("new");
  expect(after.requests[0]?.id).toBe("r1");
});
