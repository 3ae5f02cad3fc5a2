import { useEffect, useRef, useState } from "preact/hooks";
import { IconButton } from "../components/button";
import { attach, pastedFiles } from "./model/attachments";
import { IMAGE_TYPES } from "./model/images";

/** Opens the browser's dialog for files. */
export function AttachButton({ id }: { id: string }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <IconButton class="attach" label="Attach images" icon="image" onClick={() => input.current?.click()} />
      <input
        ref={input}
        class="offscreen"
        type="file"
        multiple
        accept={IMAGE_TYPES.join(",")}
        tabIndex={-1}
        aria-label="Image files"
        onChange={(event) => {
          void attach(id, [...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
    </>
  );
}

const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
const dialogOpen = (): boolean => document.querySelector("dialog[open]") !== null;

/**
 * Files that are dropped anywhere on the page, or pasted outside other fields, go to this conversation's message;
 * whether files are being dragged over it. A browser left alone would leave the page for a dropped file.
 */
export function useDroppedImages(id: string): boolean {
  const [dragging, setDragging] = useState(false);
  useEffect(() => {
    const over = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      if (event.dataTransfer) event.dataTransfer.dropEffect = dialogOpen() ? "none" : "copy";
      setDragging(!dialogOpen());
    };
    const leave = (event: DragEvent) => {
      if (event.relatedTarget === null) setDragging(false); // out of the window
    };
    const drop = (event: DragEvent) => {
      setDragging(false);
      if (!hasFiles(event)) return;
      event.preventDefault();
      if (!dialogOpen()) void attach(id, [...(event.dataTransfer?.files ?? [])]);
    };
    const paste = (event: ClipboardEvent) => {
      const field = (event.target as Element | null)?.closest("input, textarea");
      const files = event.clipboardData ? pastedFiles(event.clipboardData) : [];
      if (!files.length || dialogOpen() || (field && !field.closest(".composer"))) return;
      event.preventDefault();
      void attach(id, files);
    };
    document.addEventListener("dragover", over);
    document.addEventListener("dragleave", leave);
    document.addEventListener("drop", drop);
    document.addEventListener("paste", paste);
    return () => {
      document.removeEventListener("dragover", over);
      document.removeEventListener("dragleave", leave);
      document.removeEventListener("drop", drop);
      document.removeEventListener("paste", paste);
    };
  }, [id]);
  return dragging;
}
