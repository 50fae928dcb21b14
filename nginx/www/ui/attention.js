// What a person should know first: { level, name, values, lead }. `urgent` needs somebody now,
// `note` explains what might surprise. `lead` says where to look: { words, sort } for the table.

const QUIET_MS = 120_000; // prefill of a long prompt is silent too, but seldom so long

export function attention(store, now) {
  const found = [
    ...ofService(store.fault),
    ...ofNodes(store.nodes),
    ...ofPools(store.pools, store.news.alarms, smallest(store.config)),
    ...ofLeases(store.leases, now),
  ];
  return found.sort((one, other) => (other.level === "urgent") - (one.level === "urgent"));
}

function ofService(fault) {
  return fault ? [urgent("attention.fault", fault.detail || fault.code)] : [];
}

function ofNodes(nodes) {
  const found = [];
  for (const node of nodes) {
    // A gateway of somebody else's has no agent, and never had one.
    if (!node.agent) found.push(note("attention.noAgent", node.name));
    else if (node.silent) found.push(urgent("attention.silent", node.name));
    const memory = node.memory;
    if (!memory || node.silent) continue;
    const share = memory.used_bytes / memory.limit_bytes;
    if (memory.state === "full") found.push(urgent("attention.memoryFull", node.name, { share }));
    else if (memory.state === "alarm") found.push(urgent("attention.memoryAlarm", node.name, { share }));
    if (memory.leak_suspected) found.push(urgent("attention.leak", node.name));
  }
  return found;
}

// Tokens of the smallest request that there is.
function smallest(config) {
  return Math.min(...Object.values(config?.effective?.scenes?.expected_output ?? { unknown: 1 }));
}

// The alarm tells more, but a page that missed it does not hear of it again.
function isFull(open, least) {
  const reached = open.filter((backend) => !backend.unreachable);
  const fits = (each) => each.streams < each.max_streams && each.tokens + least <= each.max_tokens;
  return reached.length > 0 && !reached.some(fits);
}

function ofPools(pools, alarms, least) {
  const found = [];
  for (const pool of pools) {
    const open = pool.backends.filter((backend) => backend.state === "active");
    if (open.length === 0) found.push(urgent("attention.closed", pool.name));
    else if (alarms.has(`${pool.name}/saturated`) || isFull(open, least)) {
      found.push(note("attention.saturated", pool.name));
    }
    for (const { name, streams, tokens, max_streams, max_tokens, state, unreachable } of pool.backends) {
      const place = `${pool.name}/${name}`;
      const lead = { words: place };
      if (state === "active" && unreachable) found.push(urgent("attention.unreachable", place));
      if (state === "active" && streams > max_streams) {
        found.push({ ...note("attention.overStreams", place, streams, max_streams), lead });
      } else if (state === "active" && tokens > max_tokens) {
        found.push({ ...note("attention.overTokens", place, tokens, max_tokens), lead });
      }
      if (state === "draining" && streams > 0) found.push({ ...note("attention.draining", place, streams), lead });
    }
  }
  return found;
}

function ofLeases(leases, now) {
  let count = 0;
  let oldest = now;
  for (const { state, quietSince } of leases.values()) {
    if (state !== "active" || quietSince === null || now - quietSince < QUIET_MS) continue;
    count += 1;
    oldest = Math.min(oldest, quietSince);
  }
  if (count === 0) return [];
  return [{ ...note("attention.quiet", count, { seconds: (now - oldest) / 1000 }), lead: { words: "", sort: "idle" } }];
}

const urgent = (name, ...values) => ({ level: "urgent", name, values });
const note = (name, ...values) => ({ level: "note", name, values });
