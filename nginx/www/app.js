// The chat page: what is typed is asked, what comes is typed.

import { Announcer } from "./announcer.js";
import { ask } from "./chat.js";
import { SmoothTyper } from "./smooth-typer.js";
import { otherLanguage, speak, storedLanguage } from "./texts.js";
import { Turn } from "./turn.js";

const PATH = "/v1/chat/completions";
const REMEMBERED = 20; // messages that are sent along with the next question
const NEAR_END_PX = 80;

const find = (id) => document.getElementById(id);
const log = find("log");
const empty = find("empty");
const form = find("composer");
const prompt = find("prompt");
const send = find("send");
const stop = find("stop");
const announcer = new Announcer(find("announced"));
// An engine that serves several models wants to be told: ?model=NAME
const model = new URLSearchParams(location.search).get("model");

let messages = []; // whole exchanges only: half an answer is nothing to go on from
let running = null; // the AbortController of the question under way
let refused = false; // until its countdown is over
let last = null; // the newest turn

// Keeps the end in view for who is looking at it, and leaves alone who reads above.
function keepingEnd(change) {
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
  change();
  if (near) log.scrollTop = log.scrollHeight;
}

function refresh() {
  const focused = [stop, send, document.body].includes(document.activeElement);
  send.hidden = running !== null;
  stop.hidden = running === null;
  send.disabled = refused || prompt.value.trim() === "";
  // Not the prompt, which would bring up a phone's keyboard; it is the next but one.
  if (focused) (running ? stop : log).focus();
}

async function answer(turn, question, scene) {
  const controller = new AbortController();
  running = controller;
  refused = false;
  turn.ask();
  refresh();
  let said = "";
  const typer = new SmoothTyper((more) => keepingEnd(() => turn.type(more)));
  const outcome = await ask(PATH, {
    headers: { "X-Medical-Scene": scene },
    body: { ...(model && { model }), messages: [...messages, question] },
    signal: controller.signal,
    on: {
      text(more) {
        said += more;
        turn.streaming();
        typer.feed(more);
        announcer.feed(more);
      },
      beat: () => turn.beat(),
      thinking: () => turn.thinking(),
    },
  });
  typer.finish();
  if (running !== controller) return; // a new conversation has begun meanwhile
  running = null;
  if (outcome.kind === "whole") {
    messages = [...messages, question, { role: "assistant", content: said }].slice(-REMEMBERED);
  }
  refused = outcome.kind === "refused" && outcome.retryS !== null;
  keepingEnd(() => {
    const word = turn.end(
      outcome,
      () => !running && answer(turn, question, scene),
      (again) => {
        refused = false;
        announcer.say(again);
        refresh();
      },
    );
    announcer.finish(word);
  });
  refresh();
}

// A key while an input method is composing is meant for that: Enter picks a character. Safari ends
// the composition before it tells of the key, whose code is then 229.
function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

function submit() {
  const content = prompt.value.trim();
  if (running || refused || content === "") return;
  empty.hidden = true;
  last?.settle();
  last = new Turn(log, content);
  prompt.value = "";
  log.scrollTop = log.scrollHeight;
  answer(last, { role: "user", content }, new FormData(form).get("scene"));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
  event.preventDefault();
  submit();
});
prompt.addEventListener("input", refresh);
stop.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !isComposing(event)) running?.abort();
});
find("language").addEventListener("click", () => speak(otherLanguage()));
find("fresh").addEventListener("click", () => {
  running?.abort();
  running = null;
  refused = false;
  messages = [];
  announcer.clear();
  last?.settle();
  last = null;
  log.replaceChildren(empty);
  empty.hidden = false;
  refresh();
  prompt.focus();
});

speak(storedLanguage());
refresh();
prompt.focus({ preventScroll: true });
