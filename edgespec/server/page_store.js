// What is kept in the browser: the conversation and the settings in localStorage, the key in sessionStorage. Either may
// be refused (a WebView without DOM storage has none): then it is kept in memory, and the page says so.
const PLACE = "edgespec.chat", KEY_PLACE = "edgespec.key";
const KEPT_CHARS = 250000;

function storage(name) {
  try {
    return window[name];
  } catch {
    return null;
  }
}

const store = {
  refused: false,

  /** {messages, settings, draft}; what is damaged counts as not there. */
  load() {
    const fresh = { messages: [], settings: { system: "", temperature: "", maxTokens: "", tint: true, drafts: true }, draft: "" };
    let kept = null;
    try {
      kept = JSON.parse(storage("localStorage").getItem(PLACE));
    } catch {
      this.refused = !storage("localStorage");
    }
    if (!kept || typeof kept !== "object" || !Array.isArray(kept.messages)) return fresh;
    const isMessage = (m) => m && (m.role === "user" || m.role === "assistant") && typeof m.content === "string";
    fresh.messages = kept.messages.filter(isMessage).map((m) => ({ ...m, marks: Array.isArray(m.marks) ? m.marks.filter(isMark) : [] }));
    for (const [name, value] of Object.entries(fresh.settings)) {
      const found = kept.settings && kept.settings[name];
      if (typeof found === typeof value) fresh.settings[name] = found;
    }
    if (typeof kept.draft === "string") fresh.draft = kept.draft;
    return fresh;
  },

  /** Keep as many of the last messages as there is room for; whether they could be kept. */
  save(state) {
    let messages = state.messages;
    for (;;) {
      const text = JSON.stringify({ ...state, messages });
      try {
        if (text.length <= KEPT_CHARS || !messages.length) {
          storage("localStorage").setItem(PLACE, text);
          this.refused = false;
          return;
        }
      } catch {
        if (!messages.length) {
          this.refused = true;
          return;
        }
      }
      messages = messages.slice(Math.max(1, messages.length >> 3));
    }
  },

  forget() {
    try {
      storage("localStorage").removeItem(PLACE);
    } catch {
      this.refused = true; // nothing was kept either
    }
  },
};

function isMark(mark) {
  return Array.isArray(mark) && Number.isInteger(mark[0]) && Number.isInteger(mark[1]);
}

const key = {
  value: "",

  /** A key of the address (#token=...), which is taken out of it, or the one that was kept. */
  take() {
    const found = /^#token=(.*)$/.exec(location.hash);
    if (found) {
      let given = found[1];
      try {
        given = decodeURIComponent(given);
      } catch {
        // it was not encoded: it is the key as it is
      }
      history.replaceState(history.state, "", location.pathname + location.search);
      this.use(given);
      return true;
    }
    try {
      this.value = storage("sessionStorage").getItem(KEY_PLACE) || "";
    } catch {
      this.value = "";
    }
    return false;
  },

  use(given) {
    this.value = /^[!-~]*$/.test(given) ? given : ""; // else no header can hold it, so it is not the server's
    try {
      storage("sessionStorage").setItem(KEY_PLACE, this.value);
    } catch {
      store.refused = true; // it holds until the page is loaded anew
    }
  },

  headers() {
    return this.value ? { authorization: `Bearer ${this.value}` } : {};
  },
};

