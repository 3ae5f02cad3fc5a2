import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Button } from "../components/button";
import { useStore } from "../state/store";
import { AttachButton } from "./attach";
import { Images } from "./images";
import { attachments, attachmentsOf, clear, detach } from "./model/attachments";
import type { AttachedImage } from "./model/types";

interface Props {
  /** Another conversation has another draft. */
  id: string;
  models: string[];
  busy: boolean;
  problem: string;
  onSend: (text: string, images: AttachedImage[]) => boolean;
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
  const { images, reading, problem: notTaken } = useStore(attachments, () => attachmentsOf(id));
  const ready = (!!text.trim() || images.length > 0) && !reading && !busy && models.every(Boolean);
  const send = () => {
    if (!ready || !onSend(text, images)) return;
    set("");
    clear(id);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      {[problem, notTaken].filter(Boolean).map((why) => (
        <p key={why} class="composer-problem" role="alert">
          {why}
        </p>
      ))}
      <div class="composer-box">
        <Images images={images} onRemove={(image) => detach(id, image)} after={area} />
        <AttachButton id={id} />
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
        <kbd>Enter</kbd> sends · <kbd>Shift</kbd>+<kbd>Enter</kbd> breaks the line · <kbd>Esc</kbd> stops · images can be dropped and pasted
      </p>
    </form>
  );
}
