// The last hour out of the service's minutes: sixty places, and what each chart counts.

export const MINUTES = 60;
const STEP_S = 60;

const LEFT = ["client_abort", "killed"];
const LIMITS = ["streams_exhausted", "tokens_exhausted", "request_too_large", "queue_full", "queue_timeout", "tenant_limit"];

// Kinds of ends and of refusals, from the quiet to what needs somebody. What is new counts as
// the last.
export const ENDED = { of: "ended", kinds: ["completed", "left", "fault"], kindOf: endKind };
export const REFUSED = { of: "refused", kinds: ["full", "refusedFault"], kindOf: refusalKind };

function endKind(verdict) {
  if (verdict === "completed") return "completed";
  return LEFT.includes(verdict) ? "left" : "fault";
}

function refusalKind(reason) {
  return LIMITS.includes(reason) ? "full" : "refusedFault";
}

// A place a minute, the newest last; null where the service was not there to count.
export function minutesOf(points) {
  const places = Array(MINUTES).fill(null);
  const last = points.at(-1)?.at;
  for (const point of points) {
    const back = Math.round((last - point.at) / STEP_S);
    if (back >= 0 && back < MINUTES) places[MINUTES - 1 - back] = point;
  }
  return places;
}

// A chart's numbers: for each place the counts by kind, null where there is none.
export function counted(points, chart) {
  return minutesOf(points).map((point) => {
    if (!point) return null;
    const counts = Object.fromEntries(chart.kinds.map((kind) => [kind, 0]));
    for (const [code, number] of Object.entries(point[chart.of] ?? {})) counts[chart.kindOf(code)] += number;
    return { at: point.at, counts };
  });
}

// All codes that occur, with their sums, the most frequent first.
export function sums(points, chart) {
  const totals = new Map();
  for (const point of points) {
    for (const [code, number] of Object.entries(point[chart.of] ?? {})) {
      totals.set(code, (totals.get(code) ?? 0) + number);
    }
  }
  return [...totals].filter(([, number]) => number > 0).sort((one, other) => other[1] - one[1]);
}

// What the last whole minute counted; of the one under way, while there is none right before it.
export function lastMinute(points, of) {
  const [before, last] = [points.at(-2), points.at(-1)];
  const point = before && last.at - before.at <= STEP_S + 1 ? before : last; // both are rounded
  if (!point) return null;
  const value = point[of];
  return typeof value === "number" ? value : Object.values(value ?? {}).reduce((sum, number) => sum + number, 0);
}
