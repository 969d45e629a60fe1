// Keeps a page's figures up to date, and its keys. Without it links, filters and pages work.

const RETRIES = 3;
const SLOW_MS = 1000;

const main = () => document.getElementById("main");
const live = document.getElementById("live");
const pauseButton = document.getElementById("pause");
const themeButton = document.getElementById("theme");

// Times

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function showTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    const isToday = at.toDateString() === new Date().toDateString();
    each.textContent = "short" in each.dataset ? hours.format(at) : (isToday ? clock : day).format(at);
    each.title = at.toISOString();
  }
}

// Updates

let isPaused = false;
let failures = 0;
let factor = 1;
let updatedAt = Date.now();
let timer = 0;

function period() {
  return Number(main().dataset.live ?? 0) * 1000 * factor;
}

function schedule() {
  clearTimeout(timer);
  if (period() && !isPaused) timer = setTimeout(update, period());
}

async function update() {
  if (document.hidden) return schedule();
  const started = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { "Magnetar-Fragment": "1" }, cache: "no-store" });
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

function morph(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("main");
  const selected = document.querySelector("tr.cur")?.id;
  Idiomorph.morph(main(), fresh, { ignoreActiveValue: true });
  showTimes(main());
  if (selected) document.getElementById(selected)?.classList.add("cur");
}

function showState() {
  const isLive = period() > 0;
  live.hidden = pauseButton.hidden = !isLive;
  const isStale = failures >= RETRIES;
  live.className = isStale ? "live failed" : isPaused ? "live paused" : "live";
  main().classList.toggle("stale", isStale);
  const age = Math.round((Date.now() - updatedAt) / 1000);
  document.getElementById("live-text").textContent = isStale
    ? `No answer since ${clock.format(updatedAt)}`
    : isPaused ? "Paused" : `Live, every ${period() / 1000} s`;
  live.title = `Figures are ${age} s old`;
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
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (isDark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
}

// Keys

const rows = () => [...main().querySelectorAll("tbody > tr[id]:not(.sub2)")];
const places = { o: "", t: "topics", s: "subscriptions" };
let isGoing = false;

function move(step) {
  const all = rows();
  const at = all.findIndex((row) => row.classList.contains("cur"));
  const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
  all[at]?.classList.remove("cur");
  next?.classList.add("cur");
  next?.scrollIntoView({ block: "nearest" });
}

function isTyping(target) {
  return target instanceof HTMLElement && target.closest("input, textarea, select, [contenteditable]");
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
  if (isTyping(event.target) || localStorage.getItem("keys") === "off") return;
  const root = document.body.dataset.root;
  if (isGoing && event.key in places) location.href = (root + places[event.key]) || "./";
  isGoing = event.key === "g";
  const actions = {
    "/": () => document.getElementById("find").focus(),
    f: () => main().querySelector("[data-filter]")?.focus(),
    j: () => move(1),
    k: () => move(-1),
    p: () => period() && pause(),
    "?": () => (location.href = `${root}keys`),
    Enter: () => document.querySelector("tr.cur a")?.click(),
  };
  if (event.key === "Enter" && event.target.closest?.("a, button")) return;
  if (event.key in actions) {
    actions[event.key]();
    event.preventDefault();
  }
}

function setUpKeysOption() {
  const box = document.getElementById("keys-off");
  if (!box) return;
  box.checked = localStorage.getItem("keys") === "off";
  box.addEventListener("change", () => localStorage.setItem("keys", box.checked ? "off" : "on"));
}

document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => document.hidden || isPaused || update());
pauseButton.addEventListener("click", pause);
themeButton.addEventListener("click", toggleTheme);
themeButton.hidden = false;
setUpKeysOption();
showTimes(document);
showState();
schedule();
