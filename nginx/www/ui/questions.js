// The other questions: drain, disable or activate a backend, cut a stream, look at one.

import { Change } from "./change.js";
import { ofState } from "./consequences.js";
import { Dialog } from "./dialog.js";
import { make, setText } from "./dom.js";
import { shortId } from "./format.js";
import { eventsOf, silence, stateOf } from "./lease-row.js";
import { isBeingCut } from "./store.js";
import { coded, format, text } from "./texts.js";

// context: { api, store, clock, frames, notify, changed }.
export async function askState({ api, store, frames, notify, changed }, pool, name, state) {
  const place = `${pool}/${name}`;
  const change = new Change(api, pool, name);
  let seen = await change.look();
  const others = () => {
    const backends = store.pools.find((each) => each.name === pool)?.backends ?? [];
    return backends.filter((each) => each.name !== name && each.state === "active").length;
  };
  const tell = () => {
    const running = store.backend(pool, name) ?? seen;
    const now = { ...seen, streams: running.streams };
    dialog.tell(ofState(now, state, others()).map(([sentence, ...values]) => text(sentence, ...values)));
  };
  const off = frames.on(["pools"], () => tell());
  const dialog = new Dialog(text(`ask.${state}`, place), off);
  const danger = state !== "active" && others() === 0;
  dialog.offer(text(`state.do.${state}`), async () => {
    try {
      await change.make({ state });
    } catch (error) {
      if (error.now) seen = error.now;
      tell();
      throw error;
    }
    notify(text("state.done", place, text(`state.name.${state}`)));
    dialog.close();
    changed();
  }, { danger });
  tell();
  dialog.open();
}

export function askCut({ api, store, clock, frames, notify }, lease) {
  const id = shortId(lease.id);
  if (isBeingCut(lease, clock.now())) {
    notify(text("cut.cutting", id));
    return;
  }
  const place = `${lease.pool}/${lease.backend}`;
  const tell = () => {
    const open = store.leases.get(lease.id); // one that was on no page may be back
    dialog.allow(Boolean(open));
    if (!open) {
      dialog.tell([text("cut.gone", id)]);
      return;
    }
    dialog.tell([
      text("cut.age", format.duration((clock.now() - open.since) / 1000)),
      text("cut.what"),
      text("cut.room", format.number(open.tokens), place),
    ]);
  };
  const off = frames.on(["leases"], () => tell());
  const dialog = new Dialog(text("ask.cut", id), off);
  make("p", "full-id", dialog.body, `${lease.id} · ${place} · ${lease.scene}`);
  dialog.offer(text("cut.do"), async () => {
    const told = notify("", { waits: true });
    let ended = null;
    const forget = store.whenEnded(lease.id, (data) => {
      ended = data ? text("cut.ended", id, coded(data.verdict), format.duration(data.age_s)) : text("cut.gone", id);
      told.say(ended);
    });
    try {
      const { data } = await api.ask("DELETE", `v1/leases/${encodeURIComponent(lease.id)}?cut=true`);
      // The end may have been heard of before the answer.
      if (data.outcome === "cutting") store.cutting(lease.id);
      if (!ended) told.say(outcome(id, data.outcome), { waits: data.outcome === "cutting" });
    } catch (error) {
      if (error.status !== 404) {
        forget();
        told.dismiss();
        throw error;
      }
      if (!ended) told.say(text("cut.gone", id));
    }
    dialog.close();
  }, { danger: true });
  tell();
  dialog.open();
}

function outcome(id, said) {
  if (said === "cutting") return text("cut.cutting", id);
  return text(said === "already_released" ? "cut.already" : "cut.released", id);
}

// All that is known of a stream. It goes on being true while it is open.
export function showLease(context, lease) {
  const { store, clock, frames } = context;
  const off = frames.on(["leases", "second"], () => show());
  const dialog = new Dialog(text("details", shortId(lease.id)), off);
  const list = make("dl", "details", dialog.body);
  const gone = make("p", "soft", dialog.body);
  const line = (words) => {
    make("dt", "soft", list, words);
    return make("dd", "", list);
  };
  const values = {
    id: line(text("col.id")), place: line(text("col.place")), scene: line(text("col.scene")),
    tokens: line(text("col.tokens")), since: line(text("detail.since")), age: line(text("col.age")),
    bytes: line(text("col.bytes")), idle: line(text("col.idle")), state: line(text("col.state")),
    session: line(text("detail.session")),
    ...(lease.tenant && { tenant: line(text("detail.tenant")) }),
  };
  const show = () => {
    const here = store.leases.has(lease.id);
    lease = store.leases.get(lease.id) ?? lease; // one that was on no page may be back
    setText(gone, here ? "" : text("detail.gone"));
    if (cut) cut.hidden = !here;
    if (!here) return;
    const now = clock.now();
    const { progress } = lease;
    const told = {
      id: lease.id, place: `${lease.pool}/${lease.backend}`, scene: lease.scene, tokens: format.number(lease.tokens),
      since: format.time((Date.now() - (now - lease.since)) / 1000),
      age: format.duration((now - lease.since) / 1000),
      bytes: progress ? `${format.bytes(progress.bytes)} · ${eventsOf(progress)}` : text("unknown"),
      idle: silence(lease, now),
      state: text(`state.name.${stateOf(lease, now)}`) + (lease.verdict ? ` · ${coded(lease.verdict)}` : ""),
      session: lease.session, tenant: lease.tenant,
    };
    for (const [name, element] of Object.entries(values)) setText(element, told[name]);
  };
  let cut = null;
  if (store.may("cut")) {
    cut = make("button", "quiet danger", dialog.foot, `${text("cut")}…`);
    cut.type = "button";
    cut.addEventListener("click", () => {
      dialog.close();
      askCut(context, lease);
    });
  }
  show();
  dialog.open();
}
