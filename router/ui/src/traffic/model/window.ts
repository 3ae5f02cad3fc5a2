/** Which rows of a long list are in sight. */

export interface Slice {
  first: number;
  /** Exclusive. */
  last: number;
}

/** Rows of `height` pixels that show between `top` and `top + view`, and `more` on both sides. */
export function slice(rows: number, height: number, top: number, view: number, more = 6): Slice {
  const first = Math.max(0, Math.min(rows, Math.floor(top / height) - more));
  return { first, last: Math.max(first, Math.min(rows, Math.ceil((top + view) / height) + more)) };
}
