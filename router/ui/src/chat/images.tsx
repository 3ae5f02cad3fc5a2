import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { IconButton } from "../components/button";
import { Icon } from "../components/icons";
import { bytes } from "../state/format";
import { fileOf } from "./model/images";
import type { AttachedImage } from "./model/types";

interface Props {
  images: AttachedImage[];
  /** Where they can be removed. */
  onRemove?: (image: AttachedImage) => void;
  /** What has the focus once the last one is removed. */
  after?: RefObject<HTMLElement | null>;
}

/** Images of a message, before or after it is sent. */
export function Images({ images, onRemove, after }: Props) {
  const list = useRef<HTMLUListElement>(null);
  if (!images.length) return null;
  const remove = (image: AttachedImage, at: number) => {
    onRemove?.(image);
    // Whoever removes by keyboard goes on where they were
    const buttons = list.current?.querySelectorAll("button") ?? [];
    (buttons[at + 1] ?? buttons[at - 1] ?? after?.current)?.focus();
  };
  return (
    <ul ref={list} class={`images${onRemove ? " attached" : ""}`} aria-label={onRemove ? "Attached images" : "Images"}>
      {images.map((image, at) => (
        <li key={image}>
          <Picture image={image} />
          {onRemove && (
            <IconButton
              kind="plain"
              class="remove-image"
              label={`Remove ${image.name}`}
              icon="close"
              onClick={() => remove(image, at)}
            />
          )}
        </li>
      ))}
    </ul>
  );
}

function Picture({ image }: { image: AttachedImage }) {
  const file = fileOf(image);
  const [url, setUrl] = useState("");
  const [broken, setBroken] = useState(false);
  useEffect(() => {
    if (!file) return;
    const made = URL.createObjectURL(file);
    setUrl(made);
    setBroken(false);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  if (file && !broken) {
    // Without src there is nothing to load, and its place is held
    return (
      <img
        src={url || undefined}
        alt={image.name}
        title={image.name}
        draggable={false} // dropped on the page itself it would be attached again
        onError={() => setBroken(true)}
      />
    );
  }
  return (
    <span class="no-image">
      <Icon name="image" />
      <span class="no-image-name">{image.name}</span>
      <span class="muted">
        {file ? "cannot be shown" : `${bytes(image.bytes)}, not kept by this page and not sent again`}
      </span>
    </span>
  );
}
