// The strip: how the answer is made. What is not known is a dash, never 0.
const N_PASSES = 60;
let running = null; // {message, stopper, passes, timings, ...} while an answer is made
let props = null, sensing = false; // what /props said last

function number(value, digits = 1) {
  return typeof value === "number" && Number.isFinite(value) ? value.toFixed(digits) : "–";
}

function showPass() {
  const { passes, timings } = running;
  if (!timings) return;
  const last = passes[passes.length - 1];
  $("rate").textContent = number(timings.predicted_per_second);
  $("accepted").textContent = timings.draft_n ? `${number((100 * timings.draft_n_accepted) / timings.draft_n, 0)} %` : "–";
  $("draft").textContent = last ? last.drafted : "–";
  const { length } = passes;
  $("width").textContent = length ? number(passes.reduce((sum, each) => sum + each.n, 0) / length) : "–";
  const shown = passes.slice(-N_PASSES), most = Math.max(4, ...shown.map((each) => each.n));
  $("passes").replaceChildren(
    ...shown.map(({ n, accepted }) => {
      const bar = el("i");
      bar.style.height = `${(100 * n) / most}%`;
      bar.style.setProperty("--share", `${(100 * accepted) / n}%`);
      return bar;
    }),
  );
  if (!running.ended) showMachine();
}

function cores(cpus) {
  const runs = [];
  for (const cpu of [...cpus].sort((a, b) => a - b)) {
    const run = runs[runs.length - 1];
    if (run && run[1] === cpu - 1) run[1] = cpu;
    else runs.push([cpu, cpu]);
  }
  return runs.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(",");
}

/** The machine as it is now, and whether anything is guessed; `report` is the account of a finished answer. */
function showMachine(report = null) {
  const heat = props?.heat || {};
  $("heat").textContent = number(heat.temp_c, 0);
  if (report) {
    const on = report.cpus_target ? ` on ${cores(report.cpus_target)}` : "";
    $("cores").textContent = report.threads === null ? "–" : `${report.threads}${on}`;
    showMachine.report = report;
  }
  const limits = heat.limits?.length ? ` · ${heat.limits.join("; ")}` : heat.throttled ? " · held back by heat" : "";
  $("drafting").textContent = drafting(report || (running ? null : showMachine.report)) + limits;
}

function drafting(report) {
  const can = props?.speculative;
  if (!state.settings.drafts) return "Drafting off: switched off in Settings";
  if (can?.off_reason) return `Drafting off: ${can.off_reason}`;
  if (report?.drafter_off_reason) return `Drafting off: ${report.drafter_off_reason}`;
  if (report) {
    const saved = report.saved_s;
    const gain = typeof saved !== "number" ? "" : saved < 0 ? `, cost ${number(-saved, 2)} s` : `, saved ${number(saved, 2)} s`;
    const how = report.drafted ? `${report.accepted} of ${report.drafted} guessed tokens accepted` : "nothing guessed: no match, or not worth it";
    return `Drafting on (${report.drafter}): ${how}${gain}`;
  }
  if (running?.timings && !running.timings.draft_n) return "Drafting on: nothing guessed yet";
  return "Drafting on";
}

async function sense() {
  if (sensing || document.hidden) return;
  sensing = true;
  try {
    props = await (await ask("/props")).json();
    $("model").textContent = `${props.model}, ${props.n_ctx} tokens of context`;
    showMachine();
  } catch (error) {
    if (!running) fail(error, sense);
  } finally {
    sensing = false;
  }
}

