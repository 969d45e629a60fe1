// Keeps a page's figures up to date, and its keys. Without it links, filters and pages work.

const RETRIES = 3;
const SLOW_MS = 1000;

const main = () => document.getElementById("main");
const top = new URL(document.body.dataset.root || "./", location.href).href;
const live = document.getElementById("live");
const pauseButton = document.getElementById("pause");

// Times

let clock, hours, day, date;

function readZone() {
  const timeZone = localStorage.getItem("zone") === "UTC" ? "UTC" : undefined;
  clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium", timeZone });
  hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", timeZone });
  day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", timeZone });
  date = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeZone });
  document.getElementById("zone").textContent = ` · times: ${clock.resolvedOptions().timeZone}`;
}

function showTimes(root) {
  const today = date.format(new Date());
  for (const each of root.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const isToday = date.format(at) === today;
    const short = each.dataset.short === "seconds" ? clock : hours;
    each.textContent = ("short" in each.dataset ? short : isToday ? clock : day).format(at);
    each.title = at.toISOString();
  }
}

function changeZone() {
  localStorage.setItem("zone", localStorage.getItem("zone") === "UTC" ? "local" : "UTC");
  readZone();
  showTimes(document);
}

// What boxes choose for pages that the server makes: a cookie with the values of those that are
// checked or, with data-unless, of those that are not.

function choose({ dataset, value, checked }) {
  const cookies = new Map(document.cookie.split("; ").map((each) => each.split("=")));
  const chosen = new Set(cookies.get(dataset.choice)?.split("&").filter(Boolean));
  if (checked === "unless" in dataset) chosen.delete(encodeURIComponent(value));
  else chosen.add(encodeURIComponent(value));
  const about = `path=${new URL(top).pathname}; max-age=31536000; SameSite=Lax`;
  document.cookie = `${dataset.choice}=${[...chosen].join("&")}; ${about}`;
}

// Updates

let isPaused = false;
let failures = 0;
let factor = 1;
let updatedAt = Date.now();
let timer = 0;

const period = () => Number(main().dataset.live ?? 0) * 1000 * factor;

function schedule() {
  clearTimeout(timer);
  if (period() && !isPaused) timer = setTimeout(update, period());
}

async function update() {
  if (document.hidden) return schedule();
  const started = performance.now();
  try {
    const order = main().querySelector("[data-order]")?.dataset.order; // of rows: it is kept
    const headers = { "Magnetar-Fragment": order ?? "1" };
    const answer = await fetch(location.href, { headers, cache: "no-store" });
    if (answer.redirected) return location.reload(); // to the login
    if (answer.status >= 500) throw new Error(`the broker answers ${answer.status}`);
    morph(await answer.text());
    failures = 0;
    updatedAt = Date.now();
  } catch (error) {
    failures += 1;
    console.debug(error);
  }
  factor = performance.now() - started > SLOW_MS ? Math.min(factor * 2, 12) : 1;
  showState();
  schedule();
}

// Rows of brokers that give no answer now stay, with the figures that were known.
function keepSilent(fresh) {
  const table = fresh.querySelector("table[data-silent]");
  const silent = new Set(table?.dataset.silent.split(" "));
  for (const row of table ? main().querySelectorAll("tr[data-broker]") : []) {
    if (!silent.has(row.dataset.broker) || fresh.querySelector(`#${CSS.escape(row.id)}`)) continue;
    row.classList.add("then");
    row.title = `${row.dataset.broker} does not answer: figures of then`;
    table.tBodies[0].append(row.cloneNode(true));
  }
}

function morph(text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  const fresh = page.getElementById("main");
  const selected = document.querySelector("tr.cur")?.id;
  keepSilent(fresh);
  // What is open or chosen in the browser alone stays.
  const callbacks = { beforeNodeMorphed: (old) => old.dataset?.keep === undefined, beforeAttributeUpdated: (name) => name !== "open" };
  Idiomorph.morph(main(), fresh, { ignoreActiveValue: true, callbacks });
  Idiomorph.morph(document.getElementById("menu"), page.getElementById("menu"), { callbacks });
  showTimes(main());
  if (selected) document.getElementById(selected)?.classList.add("cur");
}

function showState() {
  const isLive = period() > 0;
  live.hidden = pauseButton.hidden = !isLive;
  const isStale = failures >= RETRIES;
  live.className = isStale ? "live failed" : isPaused ? "live paused" : "live";
  main().classList.toggle("stale", isStale);
  const s = Math.round((Date.now() - updatedAt) / 1000);
  const age = s < 100 ? `${s} s old` : `of ${clock.format(updatedAt)}`;
  const text = isStale
    ? `No answer since ${clock.format(updatedAt)}, figures ${age}`
    : isPaused ? `Paused, ${age}` : s > 2 + period() / 1000 ? `Live, ${age}` : `Live, every ${period() / 1000} s`;
  const place = document.getElementById("live-text");
  if (place.textContent !== text) place.textContent = text;
}

function pause() {
  isPaused = !isPaused;
  pauseButton.setAttribute("aria-pressed", String(isPaused));
  if (isPaused) schedule();
  else update();
  showState();
}

// Theme

function toggleTheme() {
  const { dataset } = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  dataset.theme = (dataset.theme ?? system) === "dark" ? "light" : "dark";
  localStorage.setItem("theme", dataset.theme);
}

// Keys

const rows = () => [...main().querySelectorAll("tbody > tr[id]:not(.sub2)")];
const places = { o: "", t: "topics", s: "subscriptions", m: "messages" };
let isGoing = false;

function move(step) {
  const all = rows();
  const at = all.findIndex((row) => row.classList.contains("cur"));
  const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
  all[at]?.classList.remove("cur");
  next?.classList.add("cur");
  next?.scrollIntoView({ block: "nearest" });
  next?.querySelector("a[href]")?.focus({ preventScroll: true }); // so that it is read out
}

// Of the chosen row, or of the topic that is shown
function messages() {
  const at = document.querySelector("tr.cur a[href]")?.href ?? location.href;
  const topic = at.startsWith(`${top}topic/`) && at.slice(top.length).match(/^topic(?:\/[^/?#]+){4}/);
  if (!topic) return;
  const name = new URL(at).searchParams.get("open");
  const query = name ? `?${new URLSearchParams({ subscription: name })}` : "";
  location.href = `${top}${topic[0]}/messages${query}`;
}

function isTyping(target) {
  return target instanceof HTMLElement && target.closest("input, textarea, select, [contenteditable]");
}

const actions = {
  "/": () => document.getElementById("find").focus(),
  f: () => main().querySelector("[data-filter]")?.select(),
  j: () => move(1),
  k: () => move(-1),
  m: messages,
  p: () => period() && pause(),
  "?": () => (location.href = `${document.body.dataset.root}keys`),
  Enter: () => document.querySelector("tr.cur a")?.click(),
  theme: toggleTheme,
  zone: changeZone,
};

// The phone's menu lies over the page: Esc closes it, as does a tap elsewhere.
const openMenu = () => document.querySelector(".bot details[open]");

function onKey(event) {
  if (event.key === "Escape") openMenu()?.removeAttribute("open");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
  if (isTyping(event.target) || localStorage.getItem("keys") === "off") return;
  const place = isGoing ? places[event.key] : undefined;
  isGoing = event.key === "g";
  if (place !== undefined) return (location.href = document.body.dataset.root + place || "./");
  if (event.key === "Enter" && event.target.closest?.("a, button, summary")) return;
  if (event.key in actions) {
    actions[event.key]();
    event.preventDefault();
  }
}

// What is shown of a value; the clipboard's own API is for pages over TLS only.
function copy(button) {
  getSelection().selectAllChildren(button.closest("section").querySelector(button.dataset.copy));
  button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
}

function setUpChoices() {
  const [off, utc] = ["keys-off", "utc"].map((id) => document.getElementById(id));
  if (!off) return;
  off.checked = localStorage.getItem("keys") === "off";
  off.addEventListener("change", () => localStorage.setItem("keys", off.checked ? "off" : "on"));
  utc.checked = localStorage.getItem("zone") === "UTC";
  utc.addEventListener("change", changeZone);
}

function onClick(event) {
  if (!openMenu()?.contains(event.target)) openMenu()?.removeAttribute("open");
  if (event.target.matches?.("[data-copy]")) return copy(event.target);
  const key = event.target.closest?.("[data-key]")?.dataset.key;
  if (!key) return;
  event.preventDefault();
  actions[key]();
}

document.addEventListener("keydown", onKey);
document.addEventListener("click", onClick);
document.addEventListener("change", ({ target }) => target.dataset.choice && choose(target));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !isPaused && period()) update();
});
document.getElementById("theme").hidden = false;
setUpChoices();
readZone();
showTimes(document);
showState();
setInterval(showState, 1000);
schedule();
