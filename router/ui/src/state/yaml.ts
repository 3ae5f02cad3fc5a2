/** YAML 1.2 of what came as JSON: block style, strings in quotes only where they would read as something else. */

export function toYaml(value: unknown): string {
  return `${lines(value, "").join("\n")}\n`;
}

function lines(value: unknown, indent: string): string[] {
  if (Array.isArray(value)) {
    if (!value.length) return [`${indent}[]`];
    return value.flatMap((item) => {
      if (!isNested(item)) return [`${indent}- ${scalar(item)}`];
      const [first = "", ...rest] = lines(item, `${indent}  `);
      return [`${indent}- ${first.slice(indent.length + 2)}`, ...rest];
    });
  }
  if (isNested(value)) {
    return Object.entries(value as object).flatMap(([key, item]) => {
      if (item === undefined) return [];
      const name = `${indent}${text(key)}:`;
      if (!isNested(item)) return [`${name} ${scalar(item)}`];
      return [name, ...lines(item, Array.isArray(item) ? indent : `${indent}  `)];
    });
  }
  return [`${indent}${scalar(value)}`];
}

function isNested(value: unknown): boolean {
  return Array.isArray(value)
    ? value.length > 0
    : typeof value === "object" && value !== null && Object.keys(value).length > 0;
}

function scalar(value: unknown): string {
  if (Array.isArray(value)) return "[]";
  if (typeof value === "object" && value !== null) return "{}";
  return typeof value === "string" ? text(value) : String(value ?? "null");
}

const PLAIN = /^[A-Za-z0-9_./$(][^\n\r\t]*$/;
const NOT_A_STRING =
  /^(?:true|false|null|yes|no|on|off|y|n|~|\.inf|\.nan|[-+]?\.?\d[\d_.:eE+-]*|0[xo][\da-f]+|\d{4}-\d\d?-\d\d?.*)$/i;

/** Text as it is where YAML reads it as that text, else in double quotes, whose escapes are those of JSON. */
function text(value: string): string {
  const plain =
    PLAIN.test(value) &&
    !NOT_A_STRING.test(value) &&
    !/: |:$| #|\s$|[\u0000-\u001f\u007f-\u009f\u2028\u2029\ufeff]/.test(value);
  return plain ? value : JSON.stringify(value);
}
