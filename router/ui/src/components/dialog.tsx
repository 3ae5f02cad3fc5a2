import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { IconButton } from "./button";

interface Props {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  footer?: ComponentChildren;
  wide?: boolean;
}

/** A modal dialog: the browser keeps the focus inside, closes it on Escape and gives the focus back. */
export function Dialog({ title, onClose, children, footer, wide }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      // What opened it may be gone by now: a conversation that was deleted
      if (before instanceof HTMLElement) (before.isConnected ? before : document.getElementById("main"))?.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? "dialog wide" : "dialog"}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onPointerDown={(event) => event.target === element.current && onClose()}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <div class="dialog-body">
        <header>
          <h2 id={heading}>{title}</h2>
          <IconButton label="Close" icon="close" onClick={onClose} />
        </header>
        <div class="dialog-content">{children}</div>
        {footer && <footer>{footer}</footer>}
      </div>
    </dialog>
  );
}
