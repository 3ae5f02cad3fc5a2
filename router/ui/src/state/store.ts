import { useEffect, useRef, useState } from "preact/hooks";

/** A value that components follow. */
export interface Store<T> {
  get(): T;
  set(value: T): void;
  subscribe(listener: () => void): () => void;
}

export function createStore<T>(value: T): Store<T> {
  const listeners = new Set<() => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const listener of [...listeners]) listener();
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** The store's value, or what `select` takes from it: the component renders again only when that changes. */
export function useStore<T>(store: Store<T>): T;
export function useStore<T, U>(store: Store<T>, select: (value: T) => U): U;
export function useStore<T, U>(store: Store<T>, select: (value: T) => U = (value) => value as unknown as U): U {
  const selected = select(store.get());
  const [, render] = useState({});
  // A selector may hold what changes from one rendering to the next: the last one counts
  const last = useRef({ select, selected });
  last.current = { select, selected };
  useEffect(() => {
    const changed = () => {
      if (!Object.is(last.current.select(store.get()), last.current.selected)) render({});
    };
    changed();
    return store.subscribe(changed);
  }, [store]);
  return selected;
}
