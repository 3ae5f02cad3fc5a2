import { useRef, useState } from "preact/hooks";
import { announce } from "../components/announce";
import { Button, IconButton } from "../components/button";
import { Dialog } from "../components/dialog";
import { useOverlay } from "../components/overlay";
import { useStore } from "../state/store";
import { add, begin, change, conversations, currentId, discard, isEmpty, notice } from "./model/conversations";
import { stop } from "./model/generation";
import { exported, imported } from "./model/storage";
import type { Conversation } from "./model/types";

/** The conversations that are kept in this browser. */
export function Sidebar({ onClose }: { onClose: () => void }) {
  const list = useStore(conversations).filter((one) => !isEmpty(one));
  const current = useStore(currentId);
  const [renaming, rename] = useState<Conversation | null>(null);
  const [deleting, remove] = useState<Conversation | null>(null);
  const file = useRef<HTMLInputElement>(null);
  const panel = useOverlay<HTMLElement>("(width < 900px)", onClose);
  const read = async (chosen: File | undefined) => {
    if (!chosen) return;
    try {
      const found = imported(await chosen.text());
      notice.set("");
      const added = add(found);
      const others = added < found.length ? "; the others were here already" : "";
      // What the storage had to say of them is not to be lost
      notice.set(`${added} of ${found.length} conversations imported${others}. ${notice.get()}`);
    } catch (error) {
      notice.set((error as Error).message);
    }
  };
  return (
    <nav ref={panel} class="sidebar" aria-label="Conversations">
      <div class="sidebar-head">
        <Button
          data-focus
          icon="plus"
          class="new-chat"
          onClick={() => {
            begin();
            onClose();
          }}
        >
          New chat
        </Button>
        <IconButton class="narrow-only" label="Close the conversations" icon="close" onClick={onClose} />
      </div>
      {list.length ? (
        <ul>
          {list.map((one) => (
            <li key={one.id} class={one.id === current ? "current" : ""}>
              <button
                type="button"
                class="open"
                aria-current={one.id === current ? "true" : undefined}
                title={one.title}
                onClick={() => {
                  currentId.set(one.id);
                  onClose();
                }}
              >
                {one.title || "Untitled"}
              </button>
              <IconButton label={`Rename ${one.title}`} icon="edit" onClick={() => rename(one)} />
              <IconButton label={`Export ${one.title}`} icon="download" onClick={() => download([one])} />
              <IconButton label={`Delete ${one.title}`} icon="trash" onClick={() => remove(one)} />
            </li>
          ))}
        </ul>
      ) : (
        <p class="sidebar-empty muted">Conversations stay in this browser.</p>
      )}
      <div class="sidebar-foot">
        <Button kind="quiet" icon="upload" onClick={() => file.current?.click()}>
          Import
        </Button>
        <Button kind="quiet" icon="download" disabled={!list.length} onClick={() => download(list)}>
          Export all
        </Button>
        <input
          ref={file}
          class="offscreen"
          type="file"
          accept="application/json,.json"
          tabIndex={-1}
          aria-label="A file of exported conversations"
          onChange={(event) => {
            void read(event.currentTarget.files?.[0]);
            event.currentTarget.value = "";
          }}
        />
      </div>
      {renaming && <Rename conversation={renaming} onClose={() => rename(null)} />}
      {deleting && (
        <Dialog
          title="Delete the conversation?"
          onClose={() => remove(null)}
          footer={
            <>
              <Button onClick={() => remove(null)}>Cancel</Button>
              <Button
                kind="danger"
                onClick={() => {
                  stop(deleting.id);
                  discard(deleting.id);
                  remove(null);
                  announce("Deleted");
                }}
              >
                Delete
              </Button>
            </>
          }
        >
          <p>“{deleting.title}” is deleted from this browser. It cannot be brought back.</p>
        </Dialog>
      )}
    </nav>
  );
}

function Rename({ conversation, onClose }: { conversation: Conversation; onClose: () => void }) {
  const [title, setTitle] = useState(conversation.title);
  return (
    <Dialog
      title="Rename the conversation"
      onClose={onClose}
      footer={
        <Button type="submit" kind="primary" form="rename" disabled={!title.trim()}>
          Rename
        </Button>
      }
    >
      <form
        id="rename"
        onSubmit={(event) => {
          event.preventDefault();
          if (!title.trim()) return;
          change(conversation.id, (one) => ({ ...one, title: title.trim() }), false);
          onClose();
        }}
      >
        <label class="field">
          <span>Title</span>
          <input
            type="text"
            autofocus
            maxLength={200}
            value={title}
            onInput={(event) => setTitle(event.currentTarget.value)}
          />
        </label>
      </form>
    </Dialog>
  );
}

function download(list: Conversation[]): void {
  const url = URL.createObjectURL(new Blob([exported(list)], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = list.length === 1 ? `${slug(list[0]?.title ?? "")}.json` : "conversations.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

const slug = (title: string) =>
  title
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-|-$/g, "") || "conversation";
