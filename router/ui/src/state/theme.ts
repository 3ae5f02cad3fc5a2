import { kept } from "./browser_storage";
import { createStore } from "./store";

const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const NAME = "blade.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

const stored = kept.getItem(NAME);
export const theme = createStore<Theme>(THEMES.find((one) => one === stored) ?? "system");
/** What is shown: canvases draw anew when it changes. */
export const shownTheme = createStore<"light" | "dark">("light");

function apply(): void {
  const chosen = theme.get();
  const shown = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  document.documentElement.dataset.theme = shown;
  shownTheme.set(shown);
}

export function setTheme(value: Theme): void {
  if (value === "system") kept.removeItem(NAME);
  else kept.setItem(NAME, value);
  theme.set(value);
  apply();
}

/** A colour of `styles/tokens.css`, for a canvas. */
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

dark.addEventListener("change", apply);
apply();
