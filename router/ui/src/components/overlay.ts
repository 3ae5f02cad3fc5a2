import { useEffect, useRef } from "preact/hooks";

/** For a panel that lies over the page where it is narrow: the focus goes into it and back, and Escape closes it. */
export function useOverlay<T extends HTMLElement>(narrow: string, onClose: () => void) {
  const element = useRef<T>(null);
  const close = useRef(onClose);
  close.current = onClose;
  useEffect(() => {
    const panel = element.current;
    if (!panel || !matchMedia(narrow).matches) return;
    const before = document.activeElement;
    panel.querySelector<HTMLElement>("[data-focus]")?.focus();
    const key = (event: KeyboardEvent) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close.current();
    };
    panel.addEventListener("keydown", key);
    return () => {
      panel.removeEventListener("keydown", key);
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return element;
}
