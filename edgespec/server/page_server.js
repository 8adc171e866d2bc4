// Asking the server: what it refuses, and its streams.

class Refusal extends Error {
  constructor(status, error, retryAfter) {
    super(error.message || `the server answered with status ${status}`);
    Object.assign(this, { status, code: error.code, retryAfter });
  }
}

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { ...key.headers(), ...options.headers }, cache: "no-store" });
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error || {};
  } catch {
    // a proxy's page: the status says it
  }
  throw new Refusal(response.status, error, response.headers.get("retry-after"));
}

/** The data of a stream's events. */
async function* events(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += decoder.decode(value, { stream: true });
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

// --- what went wrong, in one line ---

function fail(error, again) {
  let text = error.message, label = "Try again", act = again;
  if (error instanceof Refusal) {
    if (error.status === 401) return askForKey(key.value ? "That key is not the right one." : "", again);
    if (error.status === 503) text += error.retryAfter ? `, in ${error.retryAfter} s` : "";
    if (error.code === "context_length_exceeded") {
      text = "Your message is longer than the model's context: shorten it";
      [label, act] = ["Edit", edit];
    }
  } else if (error instanceof TypeError) {
    text = "The server does not answer: see whether edgespec serve still runs";
  }
  showError(text, label, act);
}

function showError(text, label, act) {
  const [line, button] = $("error").children;
  line.textContent = text;
  button.textContent = label;
  button.onclick = () => {
    hideError();
    act();
  };
  $("error").hidden = false;
}

function hideError() {
  $("error").hidden = true;
}

function askForKey(why, again) {
  const box = $("key");
  if (box.open) return; // somebody is typing it in
  $("key-why").textContent = why;
  $("key-input").value = "";
  box.onsubmit = () => {
    key.use($("key-input").value.trim());
    hideError();
    again();
  };
  showError("This server wants a key", "Enter it", () => open(box));
  open(box);
}

