import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Button } from "../components/button";

interface Props {
  /** Another conversation has another draft. */
  id: string;
  models: string[];
  busy: boolean;
  problem: string;
  onSend: (text: string) => boolean;
  onStop: () => void;
}

const TALLEST = 220; // pixels
const drafts = new Map<string, string>();

/** Where one types: Enter sends, Shift+Enter breaks the line, Escape stops. */
export function Composer({ id, models, busy, problem, onSend, onStop }: Props) {
  const [text, setText] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  const set = (value: string) => {
    drafts.set(id, value);
    setText(value);
  };
  useEffect(() => {
    setText(drafts.get(id) ?? "");
    if (matchMedia("(hover: hover)").matches) area.current?.focus(); // a touch keyboard would cover the page
  }, [id]);
  useLayoutEffect(() => {
    const element = area.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${Math.min(TALLEST, element.scrollHeight + 2)}px`;
  }, [text]);
  const ready = !!text.trim() && !busy && models.every(Boolean);
  const send = () => {
    if (ready && onSend(text)) set("");
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      {problem && (
        <p class="composer-problem" role="alert">
          {problem}
        </p>
      )}
      <div class="composer-box">
        <textarea
          ref={area}
          rows={1}
          aria-label="Message"
          placeholder={models.length > 1 ? "Message both models" : `Message ${models[0] || "the model"}`}
          value={text}
          onInput={(event) => set(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              send();
            }
          }}
        />
        {busy ? (
          <Button icon="stop" class="send" onClick={onStop} title="Stop (Escape)">
            Stop
          </Button>
        ) : (
          <Button type="submit" kind="primary" icon="send" class="send" disabled={!ready} title="Send (Enter)">
            Send
          </Button>
        )}
      </div>
      <p class="composer-hint">
        <kbd>Enter</kbd> sends · <kbd>Shift</kbd>+<kbd>Enter</kbd> breaks the line · <kbd>Esc</kbd> stops
      </p>
    </form>
  );
}
