/** The browser's storage. Where it is denied to the page (cookies blocked), what is stored lasts as long as the page. */

class PageStorage {
  private readonly entries = new Map<string, string>();
  get length(): number {
    return this.entries.size;
  }
  key(index: number): string | null {
    return [...this.entries.keys()][index] ?? null;
  }
  getItem(name: string): string | null {
    return this.entries.get(name) ?? null;
  }
  setItem(name: string, value: string): void {
    this.entries.set(name, value);
  }
  removeItem(name: string): void {
    this.entries.delete(name);
  }
}

export type BrowserStorage = Pick<PageStorage, "length" | "key" | "getItem" | "setItem" | "removeItem">;

function open(name: "localStorage" | "sessionStorage"): BrowserStorage {
  try {
    return globalThis[name] ?? new PageStorage();
  } catch {
    return new PageStorage(); // reading the property alone is refused
  }
}

/** Shared by all tabs of the browser, and kept. */
export const kept = open("localStorage");
/** Of this tab alone, and gone with it. */
export const ofThisTab = open("sessionStorage");
