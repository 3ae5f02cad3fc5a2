import { afterEach, expect, test, vi } from "vitest";

afterEach(() => {
  for (const name of ["localStorage", "sessionStorage"]) Reflect.deleteProperty(globalThis, name);
});

test("a page that is denied the browser's storage works without it", async () => {
  for (const name of ["localStorage", "sessionStorage"]) {
    Object.defineProperty(globalThis, name, {
      configurable: true,
      get() {
        throw new DOMException("denied", "SecurityError");
      },
    });
  }
  vi.resetModules();
  const { apiKey, setApiKey } = await import("../src/state/auth");
  const { kept, ofThisTab } = await import("../src/state/browser_storage");
  expect(apiKey.get()).toBe("");
  setApiKey("sk-a");
  expect(ofThisTab.getItem("blade.key")).toBe("sk-a");
  setApiKey("");
  expect([ofThisTab.length, kept.length]).toEqual([0, 0]);
});
