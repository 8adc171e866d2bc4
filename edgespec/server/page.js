// The chat: what is asked, how its answer streams in, and what is shown of how it was made.
const $ = (id) => document.getElementById(id);
const RETRY_TEMPERATURE = 0.7; // as /retry in the terminal: a greedy answer would come out the same
// Drawing takes time from the cores that the model needs: ten times a second is enough to read.
const DRAW_MS = 100, KEEP_MS = 2000, SENSE_MS = 2000, N_SAID = 4000;

const state = store.load();
// --- the conversation ---

function show(message) {
  const text = el("div", { className: "text" }), acts = el("div", { className: "acts" });
  const who = el("h2", { className: "hidden" }, message.role === "user" ? "You" : "Answer");
  const node = el("article", { className: message.role }, who);
  if (message.role === "assistant") {
    const reasoning = el("details", { hidden: true }, el("summary", {}, "Reasoning"), el("div"));
    node.append(reasoning);
  }
  node.append(text, acts);
  $("log").append(node);
  redraw(node, message);
  return node;
}

function redraw(node, message) {
  const text = node.querySelector(".text");
  if (message.role === "user") {
    text.textContent = message.content;
    return;
  }
  draw(text, message.content, message.marks);
  const details = node.querySelector("details");
  details.hidden = !message.reasoning;
  details.lastChild.textContent = message.reasoning || "";
}

/** All of it anew, with what may be done to each message. */
function showAll() {
  $("log").replaceChildren(...(state.messages.length ? [] : [el("p", { className: "note" }, "Nothing said yet.")]));
  const asked = lastAsked();
  state.messages.forEach((message, i) => {
    const acts = show(message).querySelector(".acts");
    const action = (label, act) => acts.append(el("button", { type: "button", onclick: act }, label));
    if (message === running?.message) return;
    if (message.role === "assistant") action("Copy", (event) => copy(message.content, event.target));
    if (i === asked && !running) action("Edit", edit);
    if (i === state.messages.length - 1 && !running) action("Retry", retry);
    if (message.note) acts.append(el("span", { className: "note" }, message.note));
  });
  $("log").scrollTop = $("log").scrollHeight;
}

function lastAsked() {
  return state.messages.map((m) => m.role).lastIndexOf("user");
}

function send() {
  const text = $("input").value;
  if (running || !text.trim()) return;
  state.messages.push({ role: "user", content: text, marks: [] });
  setInput("");
  answer();
}

function retry() {
  const at = lastAsked();
  if (running || at < 0) return;
  const again = state.messages.length > at + 1;
  state.messages.length = at + 1;
  answer(again);
}

function edit() {
  const at = lastAsked();
  if (running || at < 0) return;
  setInput(state.messages[at].content);
  state.messages.length = at;
  hideError();
  store.save(state);
  showAll();
  $("input").focus();
}

function usualTemperature() {
  const { temperature } = state.settings;
  return temperature !== "" ? Number(temperature) : (props?.default_generation_settings.temperature ?? 0);
}

function body(first, again) {
  const { system, temperature, maxTokens, drafts } = state.settings;
  const told = state.messages.slice(first).map(({ role, content }) => ({ role, content }));
  const wanted = {
    messages: system.trim() ? [{ role: "system", content: system }, ...told] : told,
    stream: true,
    timings_per_token: true,
  };
  if (temperature !== "") wanted.temperature = Number(temperature);
  if (again) {
    wanted.temperature = Math.max(RETRY_TEMPERATURE, usualTemperature());
    wanted.seed = Math.floor(Math.random() * 2 ** 31);
  }
  if (maxTokens !== "") wanted.max_tokens = Number(maxTokens);
  if (!drafts) wanted["speculative.n_max"] = 0;
  return wanted;
}

/** Ask; where the conversation has outgrown the context, its oldest messages stay behind. */
async function request(signal, again) {
  let first = 0;
  for (;;) {
    const options = { method: "POST", headers: { "content-type": "application/json" }, signal };
    try {
      const response = await ask("/v1/chat/completions", { ...options, body: JSON.stringify(body(first, again)) });
      return [response, first];
    } catch (error) {
      const left = state.messages.length - first;
      if (error.code !== "context_length_exceeded" || left < 2) throw error;
      first += Math.max(1, left >> 2);
      while (first < state.messages.length - 1 && state.messages[first].role !== "user") first++;
    }
  }
}

async function answer(again = false) {
  hideError();
  const message = { role: "assistant", content: "", marks: [], reasoning: "", note: "interrupted" };
  running = { message, stopper: new AbortController(), passes: [], timings: null, report: null };
  showAll();
  setBusy("waiting for a place");
  $("said").textContent = "Answering";
  let problem = null;
  try {
    const [response, first] = await request(running.stopper.signal, again);
    state.messages.push(message);
    running.node = show(message);
    const reason = await take(response);
    const notes = first ? [`the context is full: the oldest ${first} messages were left out`] : [];
    if (reason === "length") notes.push("cut off at the longest answer: say “go on”, or raise it in Settings");
    if (again && usualTemperature() < RETRY_TEMPERATURE) notes.push(`drawn at temperature ${RETRY_TEMPERATURE}`);
    message.note = notes.join("; ");
  } catch (error) {
    message.note = running.stopper.signal.aborted ? "stopped" : "broken off";
    if (!running.stopper.signal.aborted) problem = error;
  }
  finish(message, problem, again);
}

function finish(message, problem, again) {
  const { report } = running;
  if (!message.content && !message.reasoning) state.messages = state.messages.filter((each) => each !== message);
  const follows = follow();
  const at = $("log").scrollTop;
  running.ended = true;
  clearTimeout(running.due);
  showPass();
  running = null;
  setBusy("");
  showAll();
  if (!follows) $("log").scrollTop = at;
  store.save(state);
  showMachine(report);
  if (store.refused) $("drafting").textContent += " · not kept: this browser allows no storage";
  $("said").textContent = `Answer${message.note ? `, ${message.note}` : ""}: ${message.content.slice(0, N_SAID)}`;
  if (problem) fail(problem, () => {
    state.messages.length = lastAsked() + 1;
    answer(again);
  });
  sense();
}

/** Take a stream in; why it ended. */
async function take(response) {
  let reason = null, kept = performance.now(), sensed = kept;
  for await (const data of events(response)) {
    if (data === "[DONE]") {
      if (!reason) break;
      return reason;
    }
    const event = JSON.parse(data);
    if (event.error) throw new Refusal(200, event.error, null);
    const choice = event.choices[0];
    if (!choice) continue;
    absorb(choice.delta, event.timings);
    reason = choice.finish_reason || reason;
    running.due ??= setTimeout(refresh, DRAW_MS);
    const now = performance.now();
    if (now - kept > KEEP_MS) {
      kept = now;
      store.save(state);
    }
    if (now - sensed > SENSE_MS) {
      sensed = now;
      sense();
    }
  }
  throw new Refusal(200, { message: "The connection ended in the middle of the answer" }, null);
}

/** A piece: its text, and by the numbers since the one before how many of its tokens were guessed. */
function absorb(delta, timings) {
  const { message } = running;
  let kind = 0;
  if (timings?.report) {
    running.report = timings.report;
    running.timings = timings;
  } else if (timings) {
    const before = running.timings || { predicted_n: 0, draft_n: 0, draft_n_accepted: 0 };
    const [n, drafted, accepted] = ["predicted_n", "draft_n", "draft_n_accepted"].map((name) => timings[name] - before[name]);
    if (accepted) kind = accepted === n ? 1 : 2;
    const last = running.passes[running.passes.length - 1];
    // The guessed part of a pass comes first, and the model's own token after it: the two are one pass.
    if (last && last.open && !drafted && !accepted) {
      last.n += n;
      last.open = false;
    } else if (n) {
      running.passes.push({ n, drafted, accepted, open: accepted > 0 && accepted === n });
    }
    running.timings = timings;
  }
  if (delta.content || delta.reasoning_content) setBusy("");
  message.reasoning += delta.reasoning_content || "";
  if (!delta.content) {
    if (delta.role && !message.content) setBusy("reading the prompt");
    return;
  }
  message.content += delta.content;
  const last = message.marks[message.marks.length - 1];
  if (last && last[1] === kind) last[0] = message.content.length;
  else message.marks.push([message.content.length, kind]);
}

function stop() {
  running?.stopper.abort();
}

// --- the page ---

function refresh() {
  if (!running?.node) return;
  running.due = null;
  const follows = follow();
  redraw(running.node, running.message);
  if (follows) $("log").scrollTop = $("log").scrollHeight;
  showPass();
}

function follow() {
  const log = $("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

function setBusy(text) {
  $("send").textContent = running ? "Stop" : "Send";
  $("send").ariaLabel = running ? "Stop the answer" : "Send";
  $("log").ariaBusy = String(Boolean(running));
  if (running?.busy === text) return;
  if (running) running.busy = text;
  document.querySelector("#log > .wait")?.remove();
  if (text) $("log").append(el("p", { className: "note wait" }, `${text} `));
}

function setInput(text) {
  $("input").value = state.draft = text;
  grow();
}

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without TLS other addresses than this machine's have no clipboard: select, and let the browser copy.
    const area = el("textarea", { value: text, className: "hidden" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label), 1500);
}

/** Open a dialog; the back gesture closes it. */
function open(box) {
  if (box.open) return;
  history.pushState({ box: box.id }, "");
  box.showModal();
}

function applySettings() {
  const { system, temperature, maxTokens, tint, drafts } = state.settings;
  $("system").value = system;
  $("temperature").value = temperature;
  $("max-tokens").value = maxTokens;
  $("tint").checked = tint;
  $("drafts").checked = drafts;
  document.body.classList.toggle("tinted", tint);
}

function readSettings() {
  const valid = (input) => (input.checkValidity() ? input.value : "");
  Object.assign(state.settings, {
    system: $("system").value, temperature: valid($("temperature")), maxTokens: valid($("max-tokens")),
    tint: $("tint").checked, drafts: $("drafts").checked,
  });
  document.body.classList.toggle("tinted", state.settings.tint);
  store.save(state);
  showMachine();
}

function restart(fresh) {
  stop();
  Object.assign(state, fresh);
  hideError();
  setInput(state.draft);
  applySettings();
  showAll();
}

function start() {
  for (const box of document.querySelectorAll("dialog")) {
    box.addEventListener("close", () => history.state?.box === box.id && history.back());
    box.addEventListener("submit", (event) => {
      event.preventDefault();
      box.close();
    });
  }
  addEventListener("popstate", () => {
    for (const box of document.querySelectorAll("dialog[open]")) if (history.state?.box !== box.id) box.close();
  });
  addEventListener("hashchange", () => {
    if (!key.take()) return;
    $("key").close();
    sense();
  });
  addEventListener("storage", () => running || restart({ ...store.load(), draft: state.draft }));
  addEventListener("pagehide", () => store.save(state));
  document.addEventListener("visibilitychange", () => {
    store.save(state);
    if (!document.hidden) sense();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) stop();
  });
  $("input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    send();
  });
  $("input").addEventListener("input", () => {
    state.draft = $("input").value;
    grow();
  });
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) stop();
    else send();
  });
  $("new").onclick = () => {
    restart({ messages: [], draft: "" });
    store.save(state);
    $("input").focus();
  };
  $("open-settings").onclick = () => open($("settings"));
  $("settings").addEventListener("input", readSettings);
  $("forget").onclick = () => {
    store.forget();
    $("settings").close();
    restart(store.load());
  };
  $("log").addEventListener("click", (event) => {
    if (event.target.matches(".copy-code")) copy(event.target.closest(".code").querySelector("code").textContent, event.target);
  });
  // Where the keyboard covers the page instead of shortening it.
  window.visualViewport?.addEventListener("resize", () => {
    const covered = window.innerHeight - visualViewport.height > 1 && visualViewport.scale === 1;
    document.documentElement.style.setProperty("--height", covered ? `${visualViewport.height}px` : "100dvh");
  });
  key.take();
  restart(state);
  sense();
}

start();
