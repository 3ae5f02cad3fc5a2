import { useEffect, useState } from "preact/hooks";
import { announce } from "./announce";
import { IconButton } from "./button";

/** Puts text on the clipboard; false where the browser allows no page to. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // plain http on another host has no clipboard API
  }
}

function copyBySelection(text: string): boolean {
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "offscreen";
  const within = document.querySelector("dialog[open]") ?? document.body;
  within.append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } finally {
    area.remove();
    if (focused instanceof HTMLElement) focused.focus();
  }
}

export function CopyButton({ text, label = "Copy" }: { text: string | (() => string); label?: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = async () => {
    const done = await copyText(typeof text === "string" ? text : text());
    setCopied(done);
    announce(done ? "Copied" : "The browser did not allow copying");
  };
  return <IconButton label={label} icon={copied ? "check" : "copy"} onClick={copy} />;
}
