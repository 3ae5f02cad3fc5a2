import { memo } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { Button, IconButton } from "../components/button";
import { CopyButton } from "../components/copy";
import { Icon } from "../components/icons";
import { useStore } from "../state/store";
import { FailureBox } from "./failure";
import { Images } from "./images";
import { Markdown } from "./markdown";
import { liveTurn } from "./model/generation";
import type { AttachedImage, Turn } from "./model/types";
import { StatsLine } from "./stats";
import { Tokens } from "./tokens";
import { ToolCalls } from "./tool_calls";

export interface Actions {
  onEdit: (turn: Turn, text: string, images: AttachedImage[]) => void;
  onRegenerate: (turn: Turn) => void;
  onCode: (turn: Turn) => void;
  onBranch: (id: string) => void;
  onReturn: (turn: Turn, results: string[]) => void;
}

interface Props extends Actions {
  turn: Turn;
  siblings: string[];
  last: boolean;
  busy: boolean;
}

/** One turn of a conversation. */
export const Message = memo((props: Props) => {
  const growing = useStore(liveTurn(props.turn.id));
  const turn = growing ?? props.turn;
  if (turn.role === "user") return <UserTurn {...props} turn={turn} />;
  if (turn.role === "tool") return <ToolTurn turn={turn} />;
  return <AssistantTurn {...props} turn={turn} growing={growing !== null} />;
});

function UserTurn({ turn, siblings, busy, onEdit, onBranch }: Props) {
  const [editing, setEditing] = useState(false);
  return (
    <article class="turn user" aria-label="You">
      {editing ? (
        <Edit
          text={turn.content}
          images={turn.images ?? []}
          busy={busy}
          onCancel={() => setEditing(false)}
          onSend={(text, images) => {
            setEditing(false);
            onEdit(turn, text, images);
          }}
        />
      ) : (
        <>
          {turn.images && <Images images={turn.images} />}
          {turn.content && <div class="bubble">{turn.content}</div>}
        </>
      )}
      <div class="turn-actions">
        <Branches turn={turn} siblings={siblings} onBranch={onBranch} />
        {turn.content && <CopyButton text={turn.content} label="Copy the message" />}
        <IconButton label="Edit and resend" icon="edit" disabled={busy || editing} onClick={() => setEditing(true)} />
      </div>
    </article>
  );
}

function Edit({
  text,
  images,
  busy,
  onCancel,
  onSend,
}: {
  text: string;
  images: AttachedImage[];
  busy: boolean;
  onCancel: () => void;
  onSend: (text: string, images: AttachedImage[]) => void;
}) {
  const [value, setValue] = useState(text);
  const [left, setLeft] = useState(images);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus(), []);
  const ready = (!!value.trim() || left.length > 0) && !busy;
  const send = () => ready && onSend(value, left);
  return (
    <div class="edit">
      <Images
        images={left}
        onRemove={(image) => setLeft((before) => before.filter((one) => one !== image))}
        after={area}
      />
      <textarea
        ref={area}
        aria-label="Edit the message"
        rows={Math.min(12, value.split("\n").length + 1)}
        value={value}
        onInput={(event) => setValue(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            onCancel();
          } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          }
        }}
      />
      <div class="turn-actions">
        <Button onClick={onCancel}>Cancel</Button>
        <Button kind="primary" disabled={!ready} onClick={send}>
          Resend
        </Button>
      </div>
    </div>
  );
}

function ToolTurn({ turn }: { turn: Turn }) {
  return (
    <article class="turn tool" aria-label="Result of a tool">
      <div class="tool-result card">
        <div class="tool-head">
          <Icon name="tool" />
          <span>Result</span>
        </div>
        <pre tabIndex={0}>{turn.content}</pre>
      </div>
    </article>
  );
}

function AssistantTurn({
  turn,
  siblings,
  last,
  busy,
  growing,
  onRegenerate,
  onCode,
  onBranch,
  onReturn,
}: Props & { growing: boolean }) {
  const [plain, setPlain] = useState(false);
  const asTokens = !!turn.tokens?.length && !plain;
  const waits = growing && !turn.content && !turn.reasoning && !turn.toolCalls?.length;
  return (
    <article class="turn assistant" aria-label={turn.model ?? "Model"} aria-busy={growing}>
      <div class="turn-model">{turn.model}</div>
      {turn.reasoning && (
        <details class="reasoning" open={growing && !turn.content}>
          <summary>{growing && !turn.content ? "Reasoning …" : "Reasoning"}</summary>
          <Markdown text={turn.reasoning} />
        </details>
      )}
      {waits && (
        <div class="first-token" role="img" aria-label="Waiting for the first token">
          <span />
          <span />
          <span />
        </div>
      )}
      {asTokens && turn.tokens ? <Tokens tokens={turn.tokens} /> : turn.content && <Markdown text={turn.content} />}
      {turn.toolCalls && (
        <ToolCalls
          calls={turn.toolCalls}
          onReturn={last && !growing && !busy ? (results) => onReturn(turn, results) : undefined}
        />
      )}
      {turn.failure && <FailureBox failure={turn.failure} />}
      <div class="turn-actions">
        {!growing && (
          <>
            <Branches turn={turn} siblings={siblings} onBranch={onBranch} />
            <CopyButton text={turn.content} label="Copy the response" />
            <IconButton label="Regenerate" icon="retry" disabled={busy} onClick={() => onRegenerate(turn)} />
            {turn.sent && <IconButton label="Show the request as code" icon="code" onClick={() => onCode(turn)} />}
            {!!turn.tokens?.length && (
              <IconButton
                label="Show token probabilities"
                icon="tokens"
                aria-pressed={asTokens}
                onClick={() => setPlain(asTokens)}
              />
            )}
          </>
        )}
        <StatsLine turn={turn} />
      </div>
    </article>
  );
}

function Branches({ turn, siblings, onBranch }: { turn: Turn; siblings: string[]; onBranch: (id: string) => void }) {
  if (siblings.length < 2) return null;
  const at = siblings.indexOf(turn.id);
  const to = (step: number) => {
    const id = siblings[at + step];
    if (id) onBranch(id);
  };
  return (
    <span class="branches" role="group" aria-label="Branches">
      <IconButton label="Previous branch" icon="left" disabled={at <= 0} onClick={() => to(-1)} />
      <span>
        {at + 1}/{siblings.length}
      </span>
      <IconButton label="Next branch" icon="right" disabled={at >= siblings.length - 1} onClick={() => to(1)} />
    </span>
  );
}
