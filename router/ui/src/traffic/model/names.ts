/** What all names begin with, up to the last separator in it: the part after it tells them apart. */
export function commonPrefix(names: string[]): string {
  const [first = "", ...others] = names;
  if (!others.length) return "";
  let length = 0;
  while (length < first.length && others.every((name) => name[length] === first[length])) length += 1;
  const cut = first.slice(0, length).search(/[-:/.][^-:/.]*$/);
  return first.slice(0, cut + 1);
}
