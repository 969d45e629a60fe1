// Shows new messages of a topic as they come. All of it is foreign text: elements get textContent.

const ROWS = 500;
const LINE = 200;
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30000;

const panel = document.getElementById("follow");
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

class Follow {
  #next = ""; // the place to go on from; empty: now
  #isWanted = false;
  #answer = null;
  #waitMs = FIRST_WAIT_MS;
  #found = 0;
  #skipped = 0;
  #button = document.getElementById("follow-start");
  #text = document.getElementById("follow-text");
  #rows = document.getElementById("follow-rows");

  constructor() {
    this.#button.addEventListener("click", () => this.#want(!this.#isWanted));
    document.addEventListener("visibilitychange", () => this.#onVisibility());
    panel.hidden = false;
  }

  #want(isWanted, why = "Paused") {
    this.#isWanted = isWanted;
    if (isWanted) this.#start();
    else this.#stop(why);
    this.#button.setAttribute("aria-pressed", String(isWanted));
    this.#button.textContent = isWanted ? "Pause" : "Resume";
  }

  #onVisibility() {
    if (!this.#isWanted) return;
    if (document.hidden) this.#stop("Paused, as this page is hidden");
    else this.#start();
  }

  #stop(why) {
    this.#answer?.abort();
    this.#answer = null;
    this.#say(why);
  }

  async #start() {
    if (this.#answer) return;
    const answer = new AbortController();
    this.#answer = answer;
    while (this.#answer === answer) {
      try {
        if (!(await this.#read(answer.signal))) return; // refused
        this.#waitMs = FIRST_WAIT_MS; // it ends by itself after some minutes
      } catch (error) {
        if (answer.signal.aborted) return;
        console.debug(error);
        this.#say("The connection is lost");
        await new Promise((done) => setTimeout(done, this.#waitMs));
        this.#waitMs = Math.min(2 * this.#waitMs, LONGEST_WAIT_MS);
      }
    }
  }

  /** Until it ends. False: it was refused. */
  async #read(signal) {
    const url = new URL(panel.dataset.url, location.href);
    if (this.#next) url.searchParams.set("position", this.#next);
    const headers = { "Magnetar-Fragment": "1", Accept: "application/x-ndjson" };
    const answer = await fetch(url, { headers, cache: "no-store", signal });
    if (answer.redirected) return location.reload(); // to the login
    if (!answer.ok) {
      if (answer.status >= 500 && answer.status !== 501) throw new Error(await answer.text());
      this.#want(false, await answer.text());
      return false;
    }
    let rest = "";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return true;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      this.#show(lines.filter(Boolean).map((line) => JSON.parse(line)));
    }
  }

  #show(items) {
    const rows = document.createDocumentFragment();
    for (const each of items) "next" in each ? this.#count(each) : rows.prepend(row(each));
    if (!rows.firstChild) return;
    document.getElementById("follow-table").hidden = false;
    this.#rows.prepend(rows);
    while (this.#rows.childElementCount > ROWS) this.#rows.lastElementChild.remove();
  }

  #count(step) {
    this.#next = step.next;
    this.#found += step.found;
    this.#skipped += step.skippedEntries;
    const many = step.found > step.shown ? `, showing ${step.shown} of ${step.found}` : "";
    const skipped = this.#skipped ? `, ${this.#skipped} entries skipped` : "";
    this.#say(`Following: ${this.#found} new${many}${skipped}`);
  }

  #say(text) {
    if (this.#text.textContent !== text) this.#text.textContent = text;
  }
}

function row(message) {
  const made = document.createElement("tr");
  const id = message.messageId + ("batchIndex" in message ? `:${message.batchIndex}` : "");
  const url = new URL(panel.dataset.page, location.href);
  url.searchParams.set("position", id);
  url.searchParams.set("id", id);
  url.searchParams.delete("filter");
  const link = document.createElement("a");
  link.href = url;
  link.append(code(id));
  const shown = message.payload ?? "";
  const value = message.error ?? (typeof shown === "string" ? shown : JSON.stringify(shown));
  const at = message.publishTime ? clock.format(message.publishTime) : "\u2013";
  cell(made, "nw", link);
  cell(made, "nw hide3", at);
  cell(made, "hide3", code(message.key ?? ""));
  const withheld = { OPEN: "(open transaction) ", ABORTED: "(aborted) " };
  cell(made, "n", code((withheld[message.transactionState] ?? "") + value));
  cell(made, "r hide3", `${message.size.toLocaleString()} B`);
  return made;
}

function cell(line, style, content) {
  const made = line.insertCell();
  made.className = style;
  made.append(content);
}

function code(text) {
  const made = document.createElement("code");
  made.textContent = visible(text.slice(0, LINE));
  return made;
}

/** As the server shows foreign text. */
function visible(text) {
  const hex = (each) => each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  return text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu, (each) => `\u27e8U+${hex(each)}\u27e9`);
}

if (panel) new Follow();
