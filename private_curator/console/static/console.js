// Keeps a page as new as the curator's directory: asks every other second whether anything changed, and takes what did.
// While a form is half filled it asks nothing and changes nothing, and the page says so.
"use strict";
const page = document.body, parts = ["state", "places", "content", "shown"];
const controls = () => [...document.querySelectorAll("main :is(input, select):not([type=hidden])")];
const chosen = (select) => Math.max(0, [...select.options].findIndex((option) => option.defaultSelected));
const filled = () => controls().some((one) =>
  one.options ? one.selectedIndex !== chosen(one) : one.files ? one.files.length : one.value !== one.defaultValue);
const say = (text) => { const live = document.getElementById("live"); if (live.textContent !== text) live.textContent = text; };

async function ask(address) {
  const reply = await fetch(address, { redirect: "manual" });
  if (reply.type === "opaqueredirect") location.reload();  // signed out
  if (!reply.ok) throw new Error(reply.status);
  return reply.text();
}

function take(next) {
  const open = [...document.querySelectorAll("#content details")].map((each) => each.open);
  const focused = document.activeElement?.id;
  for (const id of parts) document.getElementById(id).replaceChildren(...next.getElementById(id).childNodes);
  document.querySelectorAll("#content details").forEach((each, place) => { each.open = open[place] ?? each.open; });
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  page.dataset.mark = next.body.dataset.mark;
}

async function look() {
  try {
    if (!filled() && await ask("/changes?live=1") !== page.dataset.mark) {
      const next = new DOMParser().parseFromString(await ask(page.dataset.live), "text/html");
      if (!filled()) take(next);
    }
    say(filled() ? "Not asked for anew while a form is filled in." : "Up to date.");
  } catch {
    document.getElementById("state").textContent = "NOT UP TO DATE";
    page.dataset.mark = "";  // the next answer is taken, whatever it says
    say("The console does not answer.");
  }
  setTimeout(look, 2000);
}

if (page.dataset.live) look();
