// Asks for a backend's new limits, and says what they will do.

import { Change } from "./change.js";
import { ofLimits } from "./consequences.js";
import { Dialog } from "./dialog.js";
import { button, make } from "./dom.js";
import { format, text } from "./texts.js";

const MOST = { max_streams: 1_000_000, max_tokens: 1_000_000_000 };

// context: { api, store, frames, notify, changed }.
export async function askLimits({ api, store, frames, notify, changed }, pool, name) {
  const place = `${pool}/${name}`;
  const change = new Change(api, pool, name);
  let seen = await change.look();
  const off = frames.on(["pools"], () => tell());
  const dialog = new Dialog(text("ask.limits", place), off);
  const fields = make("div", "fields", dialog.body);
  const inputs = Object.fromEntries(Object.keys(MOST).map((limit) => [limit, field(fields, limit, seen[limit])]));
  const file = button("quiet", fields, text("limits.file"), () => fill(seen.configured ?? seen));
  file.hidden = !seen.configured;
  make("h3", "", dialog.body, text("limits.what"));

  const wanted = () => Object.fromEntries(Object.keys(MOST).map((limit) => [limit, whole(inputs[limit], MOST[limit])]));
  // What runs is as of now, what the limits are as of the look.
  function tell() {
    const running = store.backend(pool, name) ?? seen;
    const asked = wanted();
    const valid = Object.values(asked).every((number) => number !== null);
    const after = { ...seen, streams: running.streams, tokens: running.tokens };
    dialog.tell(
      valid
        ? ofLimits(after, asked).map(([sentence, ...values]) => text(sentence, ...values.map(shown)))
        : [text("limits.invalid", format.number(MOST.max_streams), format.number(MOST.max_tokens))],
    );
    for (const limit of Object.keys(MOST)) inputs[limit].setAttribute("aria-invalid", String(asked[limit] === null));
    const same = valid && Object.keys(MOST).every((limit) => asked[limit] === seen[limit]);
    dialog.allow(valid && !same);
  }
  function fill(limits) {
    for (const limit of Object.keys(MOST)) inputs[limit].value = String(limits[limit]);
    tell();
  }
  for (const input of Object.values(inputs)) input.addEventListener("input", tell);

  dialog.offer(text("limits.do"), async () => {
    const asked = wanted();
    const body = Object.fromEntries(Object.entries(asked).filter(([limit, number]) => number !== seen[limit]));
    try {
      const done = await change.make(body);
      notify(text("limits.done", place, format.number(done.max_streams), format.number(done.max_tokens)));
      dialog.close();
      changed();
    } catch (error) {
      // What was typed stays; what it would do is said of how things are now.
      if (error.now) seen = error.now;
      throw error;
    } finally {
      tell();
    }
  });
  tell();
  dialog.open();
  inputs.max_streams.select();
}

function field(parent, limit, value) {
  const label = make("label", "", parent);
  make("span", "", label, text(limit === "max_streams" ? "streams" : "tokens"));
  const input = make("input", "", label);
  input.type = "text";
  input.inputMode = "numeric";
  input.autocomplete = "off";
  input.name = limit;
  input.value = String(value);
  return input;
}

// What was typed as a number; null where it is none that the service takes.
function whole(input, most) {
  const typed = input.value.replace(/[\s,，]/g, "");
  const number = /^[0-9]{1,10}$/.test(typed) ? Number(typed) : 0;
  return number >= 1 && number <= most ? number : null;
}

const shown = (value) => (typeof value === "number" ? format.number(value) : value);
