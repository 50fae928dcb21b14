// The dashboard: what the service says goes into the store, what changes there is drawn with the
// next frame.

import { Api } from "./api.js";
import { ChartsView } from "./charts-view.js";
import { ServiceClock } from "./clock.js";
import { Dialog, describe } from "./dialog.js";
import { make, setAttribute, setText } from "./dom.js";
import { Frames } from "./frames.js";
import { shortId } from "./format.js";
import { LeaseGrid } from "./lease-grid.js";
import { askLimits } from "./limits-dialog.js";
import { Live } from "./live.js";
import { NodesView } from "./nodes-view.js";
import { Notices } from "./notices.js";
import { AttentionView, TotalsView } from "./overview.js";
import { PoolsView } from "./pools-view.js";
import { askCut, askState, showLease } from "./questions.js";
import { RecentView } from "./recent-view.js";
import { Store } from "./store.js";
import { format, language, speak, text } from "./texts.js";
import { TableControls } from "./table-controls.js";
import { currentTheme, nextTheme } from "./theme.js";
import { TokenForm } from "./token-form.js";

const find = (id) => document.getElementById(id);
const frames = new Frames();
const clock = new ServiceClock();
const store = new Store(clock, (part) => frames.mark(part));
const api = new Api(new URL("../", document.baseURI));
const notices = new Notices(find("notices"));
const link = { state: "connecting", at: null, why: "" };
const live = new Live(api, store, clock, { tell: linked, seen: () => grid.seen });
const context = {
  api, store, clock, frames,
  notify: (words, options) => notices.notify(words, options),
  changed: () => live.look("pools"),
};

// -- what is seen --------------------------------------------------------------------------------

const grid = new LeaseGrid(find("grid"), store, clock, {
  cut: (lease) => store.may("cut") && askCut(context, lease),
  open: (lease) => showLease(context, lease),
  copy,
  sorted: () => frames.mark("controls"),
  moved: () => frames.mark("window"),
});
const controls = new TableControls(grid, store, () => frames.mark("controls"));
const attentionView = new AttentionView(find("attention-list"), find("announced"), store, clock, lead);
const totals = new TotalsView(find("totals"), store);
const pools = new PoolsView(find("pools"), store, {
  limits: (pool, backend) => asking(() => askLimits(context, pool, backend)),
  state: (pool, backend, state) => asking(() => askState(context, pool, backend, state)),
  list: (pool, backend) => lead({ words: `${pool}/${backend}` }),
});
const charts = new ChartsView(find("charts"), store);
const nodes = new NodesView(find("nodes"), store);
const recent = new RecentView(find("recent"), find("recent-which"), store, () => frames.mark("news"));

frames.on(["who", "link"], showLink);
frames.on(["pools", "nodes", "news", "fault", "second"], () => attentionView.show());
frames.on(["pools", "nodes", "history"], () => totals.show());
frames.on(["pools", "who", "history"], () => pools.show());
frames.on(["history"], () => charts.show());
frames.on(["nodes", "config"], () => nodes.show());
frames.on(["news"], () => recent.show());
frames.on(["leases", "who"], () => {
  grid.show();
  controls.show();
});
frames.on(["window", "second"], () => grid.move());
frames.on(["pools", "controls"], () => controls.show());
setInterval(() => frames.mark("second"), 1000);

function linked(state, detail) {
  if (state === "token") tokenForm.ask(detail, api.hasToken);
  else if (state === "live") tokenForm.done();
  if (state === "live") find("main").hidden = false;
  if (state === "token" || state === "forbidden") {
    find("main").hidden = true;
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close(); // it would lie over the form
  }
  if (link.state === "live" && state !== "live") link.at = Date.now() / 1000;
  link.state = state;
  // A service that is there and says no has its reasons.
  link.why = detail?.error?.status ? detail.error.detail || detail.error.code : "";
  frames.mark("link");
}

function showLink() {
  const lost = link.state !== "live" && link.at !== null && !find("main").hidden;
  const stale = lost ? ` · ${text("stale", format.time(link.at))}` : "";
  const why = link.why ? ` (${link.why})` : "";
  setText(find("link-text"), text(`link.${link.state}`) + why + stale);
  setAttribute(document.documentElement, "data-link", link.state);
  const { who } = store;
  const named = who && link.state !== "token" ? text("role", who.open ? text("open") : who.name, text(`role.${who.role}`)) : "";
  setText(find("who"), named);
  find("leave").hidden = !api.hasToken || link.state === "token";
}

// Shows the streams that something tells of.
function lead({ words = "", sort }) {
  controls.ask({ words, pool: "", state: "", ...(sort && { by: sort, down: true }) });
  find("leases").scrollIntoView({ block: "start" });
  find("grid").focus({ preventScroll: true });
}

// -- acts ----------------------------------------------------------------------------------------

// A question looks before it asks: until it is there, no second one is begun.
let asked = false;

async function asking(question) {
  if (asked) return;
  asked = true;
  try {
    await question();
  } catch (error) {
    notices.notify(describe(error));
  } finally {
    asked = false;
  }
}

async function copy(lease) {
  try {
    await navigator.clipboard.writeText(lease.id);
    notices.notify(text("copied", shortId(lease.id)));
  } catch {
    notices.notify(text("notCopied"));
  }
}

const tokenForm = new TokenForm(find("token-form"), (token) => {
  api.token = token;
  live.start();
});

find("leave").addEventListener("click", () => {
  api.token = null;
  location.reload(); // nothing of what was shown stays
});

// -- language, theme, keys -----------------------------------------------------------------------

function showTheme() {
  const label = text(`theme.${currentTheme()}`);
  setText(find("theme"), { auto: "◐", light: "○", dark: "●" }[currentTheme()]);
  setAttribute(find("theme"), "aria-label", label);
  setAttribute(find("theme"), "title", label);
}

function say(wanted) {
  speak(wanted);
  showTheme();
  frames.markAll();
}

const KEYS = [
  ["/", "key.filter"], ["?", "key.help"], ["Esc", "key.escape"], ["↑ ↓ PgUp PgDn Home End", "key.move"],
  ["Enter", "key.enter"], ["Delete", "key.delete"], ["c", "key.copy"],
];

function showKeys() {
  const dialog = new Dialog(text("keys"));
  const list = make("dl", "details", dialog.body);
  for (const [key, name] of KEYS) {
    make("kbd", "", make("dt", "", list), key);
    make("dd", "", list, text(name));
  }
  dialog.open();
}

find("language").addEventListener("click", () => say(language.other));
find("theme").addEventListener("click", () => {
  nextTheme();
  showTheme();
});
find("keys").addEventListener("click", showKeys);
document.addEventListener("keydown", (event) => {
  if (event.isComposing || event.keyCode === 229) return; // it is meant for an input method
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && event.target === find("words")) {
    controls.ask({ words: "" });
    find("grid").focus();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "/") find("words").focus();
  else if (event.key === "?") showKeys();
  else return;
  event.preventDefault();
});

// Also for who looks from outside: what is shown, and what it is made of.
window.weir = { store, frames, live };

say(language.chosen);
live.start();
