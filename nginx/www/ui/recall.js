// What happened before this page was opened, of what matters: the service keeps its last events.

import { SseParser } from "./sse.js";

const KINDS = "refused,limits,node,alarm";
const LONGEST_MS = 2000; // the stream has no end; what is kept comes at once

// The events, oldest first. What cannot be had is no fault: it is only a courtesy.
export async function recall(api) {
  const controller = new AbortController();
  const events = [];
  const parser = new SseParser({
    onEvent: ({ type, data, lastEventId }) => {
      if (type !== "gap" && type !== "dropped") events.push({ id: Number(lastEventId), kind: type, data: JSON.parse(data) });
    },
  });
  const timer = setTimeout(() => controller.abort(), LONGEST_MS);
  try {
    const body = await api.stream(`v1/events?kinds=${KINDS}`, { "Last-Event-ID": "1" }, controller.signal);
    for (const reader = body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      parser.push(value);
    }
  } catch {
    // The time is over, or it broke off.
  } finally {
    clearTimeout(timer);
    controller.abort();
  }
  return events;
}
