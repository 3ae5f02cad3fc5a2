import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { IconButton } from "../components/button";
import { useStore } from "../state/store";
import { Message } from "./message";
import { changePane, find } from "./model/conversations";
import { FieldError } from "./model/fields";
import { regenerate, returnResults, running, sayInstead } from "./model/generation";
import { shownTurns, showBranch, siblings } from "./model/tree";
import type { AttachedImage, Conversation, Turn } from "./model/types";
import { ModelPicker } from "./model_picker";

interface Props {
  conversation: Conversation;
  index: number;
  onCode: (turn: Turn, index: number) => void;
  onProblem: (problem: string) => void;
  onRemove: (() => void) | null;
}

const NEAR = 60; // pixels from the end that count as at the end

/** One model's side of a conversation. */
export function PaneView({ conversation, index, onCode, onProblem, onRemove }: Props) {
  const { id } = conversation;
  const pane = conversation.panes[index]!;
  const busy = useStore(running, (set) => set.has(`${id}/${index}`));
  const turns = useMemo(() => shownTurns(pane), [pane]);
  const places = useMemo(() => turns.map((turn) => siblings(pane, turn).map((one) => one.id)), [turns]);
  const { scroller, content, away, toEnd } = useEnd(`${id}/${pane.leaf}`);

  const trying = useCallback(
    (act: (conversation: Conversation) => void) => {
      const now = find(id);
      if (!now) return;
      try {
        act(now);
        onProblem("");
      } catch (error) {
        if (!(error instanceof FieldError)) throw error;
        onProblem(error.message);
      }
    },
    [id],
  );
  const actions = useMemo(
    () => ({
      onEdit: (turn: Turn, text: string, images: AttachedImage[]) =>
        trying((now) => sayInstead(now, index, turn, text, images)),
      onRegenerate: (turn: Turn) => trying((now) => regenerate(now, index, turn)),
      onReturn: (turn: Turn, results: string[]) => trying((now) => returnResults(now, index, turn, results)),
      onBranch: (turn: string) => changePane(id, index, (one) => showBranch(one, turn), false),
      onCode: (turn: Turn) => onCode(turn, index),
    }),
    [id, index],
  );

  return (
    <section
      class="pane"
      aria-label={conversation.panes.length > 1 ? `Conversation with ${pane.model}` : "Conversation"}
    >
      {onRemove && (
        <div class="pane-head">
          <ModelPicker
            model={pane.model}
            label={`Model ${index + 1}`}
            onChoose={(model) => changePane(id, index, (one) => ({ ...one, model }), false)}
          />
          <IconButton label={`Remove ${pane.model}`} icon="close" onClick={onRemove} />
        </div>
      )}
      <div class="scroller" ref={scroller} tabIndex={0} role="group" aria-label="Messages">
        <div class="messages" ref={content}>
          {turns.length ? (
            turns.map((turn, at) => (
              <Message
                key={turn.id}
                turn={turn}
                siblings={places[at] ?? []}
                last={at === turns.length - 1}
                busy={busy}
                {...actions}
              />
            ))
          ) : (
            <div class="empty">
              <h2>{pane.model ? `Chat with ${pane.model}` : "No model yet"}</h2>
              <p class="muted">
                Ask something below. Settings hold the system prompt, sampling, output format and tools.
              </p>
            </div>
          )}
        </div>
      </div>
      {away && <IconButton class="to-end" kind="plain" label="To the end" icon="down" onClick={toEnd} />}
    </section>
  );
}

/** Keeps the end in view while messages grow, unless the reader has scrolled away from it. */
function useEnd(changed: string) {
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const sticks = useRef(true);
  const [away, setAway] = useState(false);
  const toEnd = useCallback(() => {
    sticks.current = true;
    setAway(false);
    scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  }, []);
  useEffect(() => {
    const element = scroller.current;
    if (!element || !content.current) return;
    const scrolled = () => {
      sticks.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR;
      setAway(!sticks.current);
    };
    element.addEventListener("scroll", scrolled, { passive: true });
    const observer = new ResizeObserver(() => {
      if (sticks.current) element.scrollTop = element.scrollHeight;
    });
    observer.observe(content.current);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", scrolled);
      observer.disconnect();
    };
  }, []);
  useLayoutEffect(toEnd, [changed]);
  return { scroller, content, away, toEnd };
}
