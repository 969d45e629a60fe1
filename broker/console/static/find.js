// What is typed at the head of a page is looked up while it is typed: a combobox with a list.
// Without it the field sends its text to the page "find".

const WAIT_MS = 120;
const AGAIN_MS = 1000; // while topics are still being read

const field = document.getElementById("find");
const list = document.getElementById("found");
const said = document.getElementById("found-count");
const page = new URL(`${document.body.dataset.root}find`, location.href);

let [asked, timer, at] = [0, 0, -1];

const options = () => [...list.querySelectorAll("[role=option]")];

function forget() { // an answer that is under way
  clearTimeout(timer);
  asked++;
}

function open(isOpen) {
  list.hidden = !isOpen;
  field.setAttribute("aria-expanded", String(isOpen));
  if (isOpen) return;
  forget();
  field.removeAttribute("aria-activedescendant");
}

function choose(next) { // null: none
  const all = options();
  all[at]?.setAttribute("aria-selected", "false");
  at = next !== null && all.length ? (next + all.length) % all.length : -1;
  all[at]?.setAttribute("aria-selected", "true");
  all[at]?.scrollIntoView({ block: "nearest" });
  if (at >= 0) field.setAttribute("aria-activedescendant", all[at].id);
  else field.removeAttribute("aria-activedescendant");
}

function group(section) {
  const made = (attributes) => Object.assign(document.createElement("div"), attributes);
  const textContent = section.dataset.group;
  const box = made({ role: "group", ariaLabel: textContent });
  const links = [...section.querySelectorAll("a")];
  for (const link of links) {
    const href = new URL(link.getAttribute("href"), page);
    Object.assign(link, { href, tabIndex: -1, role: "option", ariaSelected: "false" });
  }
  box.append(made({ textContent, ariaHidden: "true" }), ...links);
  return box;
}

async function search() {
  const number = ++asked;
  page.search = new URLSearchParams({ q: field.value.trim() });
  const sent = fetch(page, { headers: { "Magnetar-Fragment": "1" }, cache: "no-store" });
  const answer = await sent.catch(console.debug);
  if (answer?.redirected) return location.reload(); // to the login
  const text = await answer?.text().catch(console.debug);
  if (text === undefined) return;
  if (number !== asked || document.activeElement !== field) return; // more was typed since
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const chosen = options()[at]?.href;
  const boxes = [...fresh.querySelectorAll("[data-group]")].filter((each) => each.matches(":has(a), [data-reading]"));
  list.replaceChildren(...boxes.map(group));
  options().forEach((each, number) => { each.id = `found-${number}`; });
  said.textContent = options().length ? `${options().length} found` : boxes.at(-1)?.dataset.group ?? "Nothing found";
  at = -1;
  open(boxes.length > 0);
  if (fresh.querySelector("[data-reading]")) timer = setTimeout(search, AGAIN_MS);
  choose(Math.max(0, options().findIndex((each) => each.href === chosen)));
}

function onKey(event) {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && !list.hidden) {
    open(false);
    event.stopPropagation();
  } else if (event.key === "ArrowDown") list.hidden ? search() : choose(at + 1);
  else if (event.key === "ArrowUp" && !list.hidden) choose(at - 1);
  else if (event.key === "Enter" && !list.hidden && at >= 0) options()[at].click();
  else return;
  event.preventDefault();
}

field.setAttribute("role", "combobox");
field.setAttribute("aria-autocomplete", "list");
field.setAttribute("aria-controls", list.id);
open(false);
field.addEventListener("keydown", onKey);
field.addEventListener("focus", search);
field.addEventListener("input", () => {
  forget(); // it is to the text before, as is what is chosen: Enter shows the page "find"
  choose(null);
  timer = setTimeout(search, WAIT_MS);
});
field.addEventListener("blur", () => open(false));
list.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps focus
list.addEventListener("click", () => { open(false); field.blur(); });
