import type { JSX } from "preact";

const PATHS = {
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  send: "M8 13V3M3.5 7.5L8 3l4.5 4.5",
  stop: "M4.5 4.5h7v7h-7z",
  copy: "M6 6h7v7H6zM10 6V3H3v7h3",
  check: "M3 8.5L6.5 12 13 4.5",
  edit: "M3 13l.7-3L10.5 3.2l2.3 2.3L6 12.3z",
  retry: "M13 8a5 5 0 1 1-1.5-3.6M13 2.5v3h-3",
  trash: "M3 4.5h10M6 4.5V3h4v1.5M4.5 4.5l.5 8.5h6l.5-8.5",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  sliders: "M2 5h6M12 5h2M2 11h2M8 11h6M8 5a2 2 0 1 0 4 0 2 2 0 1 0-4 0M4 11a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
  code: "M5.5 4.5L2 8l3.5 3.5M10.5 4.5L14 8l-3.5 3.5",
  download: "M8 2.5v8M4.5 7L8 10.5 11.5 7M3 13.5h10",
  upload: "M8 10.5v-8M4.5 6L8 2.5 11.5 6M3 13.5h10",
  image: "M2.5 3h11v10h-11zM2.5 11l3.5-3.5 3 3 1.5-1.5 3 3M10 5.2a.8.8 0 1 0 .01 0",
  left: "M10 3.5L5.5 8l4.5 4.5",
  right: "M6 3.5L10.5 8 6 12.5",
  down: "M3.5 6L8 10.5 12.5 6",
  columns: "M2.5 3h11v10h-11zM8 3v10",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 1 0 0-6M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5z",
  display: "M2 3h12v8H2zM6 13.5h4",
  key: "M10 6a2.5 2.5 0 1 0 .01 0M8 8.5L3 13.5M4.5 12l1.5 1.5",
  tokens: "M2 5h4v6H2zM7 5h3v6H7zM11 5h3v6h-3z",
  tool: "M9.5 3a3.5 3.5 0 0 0-1.2 4.4L3 12.7 4.3 14l5.3-5.3A3.5 3.5 0 0 0 13.8 4.5L11.5 6.5 9.8 5z",
} as const;

export type IconName = keyof typeof PATHS;

/** Decoration: what it stands for is said by the text or label of what it is in. */
export function Icon({ name, size = 16 }: { name: IconName; size?: number }): JSX.Element {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
