// What a change of a backend will do, said before it is done: [a text's name, its values …].

// A backend as the service shows it; `after`: { max_streams, max_tokens } as asked for.
export function ofLimits(backend, after) {
  const told = [];
  for (const [limit, used, unit] of [
    ["max_streams", "streams", "streams"],
    ["max_tokens", "tokens", "tokens"],
  ]) {
    const [before, wanted, running] = [backend[limit], after[limit], backend[used]];
    if (wanted === before) continue;
    if (running > wanted) told.push([`${unit}.over`, running, backend.name, wanted]);
    else if (running === wanted) told.push([`${unit}.full`, running, backend.name, wanted]);
    else told.push([`${unit}.${wanted > before ? "raised" : "lowered"}`, running, backend.name, wanted, wanted - running]);
  }
  if (told.length === 0) return [["limits.same"]];
  const file = backend.configured ?? backend;
  const kept = after.max_streams === file.max_streams && after.max_tokens === file.max_tokens;
  told.push(kept ? ["limits.asFile"] : ["limits.kept", file.max_streams, file.max_tokens]);
  return told;
}

// `state`: what it is to be; `others`: how many other backends of its pool are active.
export function ofState(backend, state, others) {
  const running = backend.streams;
  if (state === "active") {
    const room = Math.max(0, backend.max_streams - running);
    return [[room > 0 ? "state.opened" : "state.openedFull", backend.name, room]];
  }
  const told = [];
  if (running > 0) told.push([`state.${state}`, running, backend.name]);
  else told.push(["state.empty", backend.name]);
  // Only who is open now can be missed.
  if (backend.state === "active") {
    told.push(others > 0 ? ["state.others", others] : ["state.last", backend.name]);
  }
  told.push(["state.kept"]);
  return told;
}
