import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

interface Props {
  title: string;
  /** Beside the title, in short. */
  note?: ComponentChildren;
  /** At the end of the title's line. */
  actions?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}

/** A part of a page, with a title that screen readers list. */
export function Panel({ title, note, actions, class: extra = "", children }: Props) {
  const id = useId();
  return (
    <section class={`card panel ${extra}`} aria-labelledby={id}>
      <header class="panel-head">
        <h3 id={id}>{title}</h3>
        {note && <span class="panel-note">{note}</span>}
        {actions && <span class="panel-actions">{actions}</span>}
      </header>
      {children}
    </section>
  );
}
