import { useEffect, useState } from "preact/hooks";
import { Button, IconButton } from "../components/button";
import { useStore } from "../state/store";
import { liveState } from "../state/stream";
import { useDroppedImages } from "./attach";
import { CodeDialog } from "./code_dialog";
import { Composer } from "./composer";
import "./model/address";
import { change, changePane, conversations, currentId, notice } from "./model/conversations";
import { FieldError } from "./model/fields";
import { isRunning, running, say, stop } from "./model/generation";
import { chooseFirst, loadModels, models, modelsProblem } from "./model/models";
import { bodyOf } from "./model/request";
import { shownTurns } from "./model/tree";
import type { AttachedImage, Conversation, Fields, Turn } from "./model/types";
import { ModelPicker } from "./model_picker";
import { PaneView } from "./pane";
import { SettingsPanel } from "./settings";
import { Sidebar } from "./sidebar";

/** Pixels from which on the conversations, or the settings, have a column of their own; and from which on both have. */
const MIDDLE = 900;
const WIDE = 1100;

export function Chat() {
  const id = useStore(currentId);
  const conversation = useStore(conversations).find((one) => one.id === id);
  const [sidebar, setSidebar] = useState(innerWidth >= MIDDLE);
  const [settings, setSettings] = useState(innerWidth >= 1500);
  const [problem, setProblem] = useState("");
  const [code, setCode] = useState<{ body: Fields; model: string } | null>(null);
  const said = useStore(notice);
  const noModels = useStore(modelsProblem);
  const served = useStore(liveState, (state) => state?.router.models.map((one) => one.id).join("\n"));

  useEffect(() => void loadModels(), [served]);
  useEffect(() => {
    setProblem("");
    chooseFirst();
  }, [id]);
  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog[open]")) stop(id);
    };
    document.addEventListener("keydown", key);
    return () => document.removeEventListener("keydown", key);
  }, [id]);
  useEffect(() => {
    // A window that became narrow shows the messages first
    const closing: [number, (() => void)[]][] = [
      [MIDDLE, [() => setSidebar(false), () => setSettings(false)]],
      [WIDE, [() => setSettings(false)]],
    ];
    const stops = closing.map(([width, closes]) => {
      const media = matchMedia(`(width < ${width}px)`);
      const changed = () => media.matches && closes.forEach((close) => close());
      media.addEventListener("change", changed);
      return () => media.removeEventListener("change", changed);
    });
    return () => stops.forEach((stop) => stop());
  }, []);
  const dragging = useDroppedImages(id);
  const busy = useStore(running, () => isRunning(id, conversation?.panes.length ?? 0));
  if (!conversation) return <p class="page-title">The conversation is gone.</p>;

  // Between the two widths there is room for one of them beside the messages
  const showSidebar = (open: boolean) => {
    setSidebar(open);
    if (open && innerWidth < WIDE) setSettings(false);
  };
  const showSettings = (open: boolean) => {
    setSettings(open);
    if (open && innerWidth < WIDE) setSidebar(false);
  };
  const showCode = (turn: Turn, index: number) => {
    const pane = conversations.get().find((one) => one.id === id)?.panes[index];
    const body = pane && bodyOf(pane, turn);
    if (body) setCode({ body, model: turn.model ?? pane.model });
  };
  const lastSent = conversation.panes.flatMap((pane, index) => {
    const turn = shownTurns(pane).findLast((one) => one.sent);
    return turn ? [{ turn, index }] : [];
  })[0];
  const send = (text: string, images: AttachedImage[]): boolean => {
    try {
      say(conversation, text, images);
      setProblem("");
      return true;
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      setProblem(error.message);
      showSettings(true);
      return false;
    }
  };

  return (
    <div class={`chat${sidebar ? " with-sidebar" : ""}${settings ? " with-settings" : ""}`}>
      {sidebar && <Sidebar onClose={() => innerWidth < MIDDLE && setSidebar(false)} />}
      <div class={`chat-main${dragging ? " dragging" : ""}`}>
        <h2 class="offscreen">{conversation.title || "New chat"}</h2>
        <Toolbar
          conversation={conversation}
          sidebar={sidebar}
          settings={settings}
          onSidebar={() => showSidebar(!sidebar)}
          onSettings={() => showSettings(!settings)}
          onCode={lastSent ? () => showCode(lastSent.turn, lastSent.index) : null}
        />
        {said && (
          <p class="notice" role="status">
            {said}
            <IconButton label="Dismiss" icon="close" onClick={() => notice.set("")} />
          </p>
        )}
        <div class={`panes panes-${conversation.panes.length}`}>
          {conversation.panes.map((_, index) => (
            <PaneView
              key={`${id}/${index}`}
              conversation={conversation}
              index={index}
              onCode={showCode}
              onProblem={setProblem}
              onRemove={conversation.panes.length > 1 ? () => removePane(conversation, index) : null}
            />
          ))}
        </div>
        <Composer
          id={id}
          models={conversation.panes.map((pane) => pane.model)}
          busy={busy}
          problem={problem || noModels}
          onSend={send}
          onStop={() => stop(id)}
        />
      </div>
      {settings && <SettingsPanel conversation={conversation} onClose={() => setSettings(false)} />}
      {code && <CodeDialog {...code} onClose={() => setCode(null)} />}
    </div>
  );
}

interface ToolbarProps {
  conversation: Conversation;
  sidebar: boolean;
  settings: boolean;
  onSidebar: () => void;
  onSettings: () => void;
  onCode: (() => void) | null;
}

function Toolbar({ conversation, sidebar, settings, onSidebar, onSettings, onCode }: ToolbarProps) {
  const { id, panes } = conversation;
  const { tokens } = conversation.settings;
  return (
    <div class="toolbar" role="group" aria-label="This conversation">
      <IconButton label="Conversations" icon="menu" aria-expanded={sidebar} onClick={onSidebar} />
      {panes.length === 1 && (
        <ModelPicker
          model={panes[0]?.model ?? ""}
          label="Model"
          onChoose={(model) => changePane(id, 0, (one) => ({ ...one, model }), false)}
        />
      )}
      <div class="toolbar-end">
        <Button
          kind="quiet"
          icon="columns"
          aria-pressed={panes.length > 1}
          title="Two models side by side, with one prompt"
          onClick={() => (panes.length > 1 ? removePane(conversation, 1) : addPane(conversation))}
        >
          <span class="wide-text">Compare</span>
        </Button>
        <Button
          kind="quiet"
          icon="tokens"
          aria-pressed={tokens}
          title="Ask for token probabilities, from the next message on"
          onClick={() => change(id, (one) => ({ ...one, settings: { ...one.settings, tokens: !tokens } }), false)}
        >
          <span class="wide-text">Tokens</span>
        </Button>
        <Button
          kind="quiet"
          icon="code"
          disabled={!onCode}
          title="The last request as curl, Python and LLMService"
          onClick={() => onCode?.()}
        >
          <span class="wide-text">Code</span>
        </Button>
        <Button
          kind="quiet"
          icon="sliders"
          aria-expanded={settings}
          title="System prompt, sampling, output format, tools"
          onClick={onSettings}
        >
          <span class="wide-text">Settings</span>
        </Button>
      </div>
    </div>
  );
}

/** A second model begins with what the first one was told. */
function addPane(conversation: Conversation): void {
  const first = conversation.panes[0];
  if (!first) return;
  stop(conversation.id);
  const other = models.get().find((one) => one.id !== first.model)?.id ?? first.model;
  change(conversation.id, (one) => ({ ...one, panes: [...one.panes, { ...first, model: other }] }), false);
}

function removePane(conversation: Conversation, index: number): void {
  stop(conversation.id);
  change(conversation.id, (one) => ({ ...one, panes: one.panes.filter((_, at) => at !== index) }), false);
}
