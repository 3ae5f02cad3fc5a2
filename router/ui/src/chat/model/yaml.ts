/**
 * Writes what JSON can hold as YAML 1.2, for manifests: block style, strings quoted where another reading is possible.
 */

export function toYaml(value: unknown, indent = ""): string {
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return value
      .map((item) => {
        const text = toYaml(item, `${indent}  `);
        return isBlock(item) ? `${indent}- ${text.slice(indent.length + 2)}` : `${indent}- ${text}`;
      })
      .join("\n");
  }
  if (typeof value === "object" && value !== null) {
    const entries = Object.entries(value).filter(([, item]) => item !== undefined);
    if (!entries.length) return "{}";
    return entries
      .map(([key, item]) => {
        const text = toYaml(item, `${indent}  `);
        return isBlock(item) ? `${indent}${scalar(key)}:\n${text}` : `${indent}${scalar(key)}: ${text}`;
      })
      .join("\n");
  }
  return typeof value === "string" ? scalar(value) : String(value);
}

function isBlock(value: unknown): boolean {
  return typeof value === "object" && value !== null && Object.keys(value).length > 0;
}

function scalar(text: string): string {
  const plain = /^[A-Za-z_./][\w./@%+-]*(:[\w./@%+-]+|:\/\/[\w./@%+:-]+)*( [\w./@%+-]+)*$/.test(text);
  const read = /^(true|false|yes|no|on|off|null|y|n|~)$/i.test(text) || /^[-+.\d]/.test(text);
  if (/^[1-9]\d*[A-Za-z]{1,2}$/.test(text)) return text; // 64Mi, 10m
  return plain && !read ? text : JSON.stringify(text);
}
