import { createStore, useStore } from "../state/store";

const message = createStore("");

/** Has a screen reader say it, when it has finished what it says now. */
export function announce(text: string): void {
  message.set("");
  setTimeout(() => message.set(text), 50); // the same words twice are said twice
}

export function Announcer() {
  return (
    <div class="offscreen" role="status" aria-live="polite" aria-atomic="true">
      {useStore(message)}
    </div>
  );
}
