// Which rows of a long list are to be there, and where to scroll so that one is seen.

const SPARE = 5; // above and below, so that a quick scroll shows no hole

// The rows [first, end) of `count` that a box shows.
export function rowsInView({ top, height, rowHeight, count }) {
  if (rowHeight <= 0) return { first: 0, end: 0 };
  const last = Math.max(0, count * rowHeight - height); // a list that became shorter
  const from = Math.min(Math.max(top, 0), last);
  return {
    first: Math.max(0, Math.floor(from / rowHeight) - SPARE),
    end: Math.min(count, Math.ceil((from + height) / rowHeight) + SPARE),
  };
}

// The scroll position at which a row is seen whole; the present one where it is already.
export function revealing(index, { top, height, rowHeight }) {
  const begin = index * rowHeight;
  if (begin < top) return begin;
  return Math.max(top, begin + rowHeight - height);
}

// Where a key leads from a row, or from between two: 4.5 is where row 5 was. Null where it leads
// nowhere.
export function rowAfter(key, index, { count, page }) {
  const steps = {
    ArrowDown: Math.floor(index + 1),
    ArrowUp: Math.ceil(index - 1),
    PageDown: Math.floor(index + page),
    PageUp: Math.ceil(index - page),
    Home: 0,
    End: count - 1,
  };
  if (!Object.hasOwn(steps, key) || count === 0) return null;
  return Math.min(Math.max(steps[key], 0), count - 1);
}
