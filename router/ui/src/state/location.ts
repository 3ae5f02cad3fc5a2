import { createStore } from "./store";

export const TABS = ["chat", "service", "traffic"] as const;
export type Tab = (typeof TABS)[number];

function read(): Tab {
  const name = location.hash.replace(/^#\/?/, "").split(/[/?]/)[0];
  return TABS.find((tab) => tab === name) ?? "chat";
}

/** What the address says after `#/`. */
export const tab = createStore<Tab>(read());
addEventListener("hashchange", () => tab.set(read()));
