import DOMPurify from "dompurify";
import { Marked } from "marked";
import { memo } from "preact/compat";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { CopyButton, copyText } from "../components/copy";
import { announce } from "../components/announce";
import { Blocks, type Block } from "./model/blocks";

const escape = (text: string) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

/** HTML of a model is shown as the text it is; an image is a link, for nothing is fetched from elsewhere. */
const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => (/^<br\s*\/?>\s*$/i.test(text) ? "<br>" : escape(text)),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    heading({ tokens, depth }) {
      // One level below the page's own, whichever a model begins with: the order of levels has no gap
      return `<h3 class="depth-${depth}">${this.parser.parseInline(tokens)}</h3>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

const TAGS = [
  "p",
  "br",
  "hr",
  "strong",
  "em",
  "del",
  "code",
  "pre",
  "blockquote",
  "ul",
  "ol",
  "li",
  "a",
  "h3",
  "table",
  "thead",
  "tbody",
  "tr",
  "th",
  "td",
];

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

export function toHtml(raw: string): string {
  const html = marked.parse(raw, { async: false });
  return DOMPurify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "start", "align", "class"],
    ALLOW_DATA_ATTR: false,
  });
}

/** A model's text; while it grows only its last block is rendered anew. */
export function Markdown({ text }: { text: string }) {
  const blocks = useRef<Blocks | null>(null);
  blocks.current ??= new Blocks();
  return (
    <div class="markdown">
      {blocks.current
        .of(text)
        .map((block, at) => (block.code ? <Code key={at} {...block.code} /> : <Html key={at} raw={block.raw} />))}
    </div>
  );
}

const Code = memo(({ text, language }: NonNullable<Block["code"]>) => (
  <div class="code">
    <div class="code-head">
      <span>{language || "text"}</span>
      <CopyButton text={text} label="Copy the code" />
    </div>
    <pre tabIndex={0}>
      <code>{text}</code>
    </pre>
  </div>
));

const Html = memo(({ raw }: { raw: string }) => {
  const element = useRef<HTMLDivElement>(null);
  const html = useMemo(() => toHtml(raw), [raw]);
  useLayoutEffect(() => {
    for (const pre of element.current?.querySelectorAll("pre") ?? []) addCopyButton(pre);
    for (const wide of element.current?.querySelectorAll("pre, table") ?? []) wide.setAttribute("tabindex", "0");
  }, [html]);
  return <div ref={element} dangerouslySetInnerHTML={{ __html: html }} />;
});

/** Code within lists and quotes. */
function addCopyButton(pre: HTMLPreElement): void {
  const text = pre.textContent ?? "";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button quiet nested-copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () =>
    announce((await copyText(text)) ? "Copied" : "The browser did not allow copying"),
  );
  pre.before(button);
}
