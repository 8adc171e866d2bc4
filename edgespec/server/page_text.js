// Text of an answer as elements. Whatever the model writes becomes text nodes: nothing here makes markup of it, and no
// link, image or attribute comes out of it. `marks` says where each piece came from: [end, kind] in the text's order.
const KINDS = ["", "guessed", "partly"];

function el(tag, props = {}, ...children) {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children);
  return node;
}

/** Put source[from, to) under parent, split where its origin changes. */
function put(parent, source, from, to, marks) {
  let low = 0, high = marks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle][0] > from) high = middle;
    else low = middle + 1;
  }
  while (from < to) {
    const mark = marks[low++];
    const end = mark ? Math.min(to, mark[0]) : to;
    const text = document.createTextNode(source.slice(from, end));
    parent.append(mark && mark[1] ? el("span", { className: KINDS[mark[1]] }, text) : text);
    from = end;
  }
}

/** Code, strong and emphasised text of one stretch. Linear: a mark that is never closed is looked for once. */
function inline(parent, source, from, to, marks) {
  const missing = new Set();
  const closing = (mark, at) => {
    if (missing.has(mark)) return -1;
    const found = source.indexOf(mark, at);
    if (found < 0 || found + mark.length > to) missing.add(mark);
    return missing.has(mark) ? -1 : found;
  };
  const finder = /`+|\*\*|\*|__/g;
  let done = from;
  finder.lastIndex = from;
  for (let found; (found = finder.exec(source)) && found.index < to;) {
    const mark = found[0], inner = found.index + mark.length;
    const isCode = mark[0] === "`";
    if (inner >= to) break;
    if (!isCode && /\s/.test(source[inner])) continue;
    const end = closing(mark, inner);
    if (end <= inner || (!isCode && /\s/.test(source[end - 1]))) continue;
    put(parent, source, done, found.index, marks);
    const node = el(isCode ? "code" : mark.length === 2 ? "strong" : "em");
    put(node, source, inner, end, marks);
    parent.append(node);
    done = finder.lastIndex = end + mark.length;
  }
  put(parent, source, done, to, marks);
}

/** Blocks of a text: {kind, from, to, ...}, found line by line. */
function blocks(source) {
  const found = [];
  let at = 0, open = null;
  while (at < source.length) {
    let end = source.indexOf("\n", at);
    if (end < 0) end = source.length;
    const line = source.slice(at, end), next = Math.min(end + 1, source.length);
    const fence = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line);
    const item = /^( *)(?:[-*+]|(\d{1,9})[.)])[ \t]+(?=\S)/.exec(line);
    const heading = /^(#{1,6})[ \t]+(?=\S)/.exec(line);
    if (open && open.kind === "code") {
      if (fence && fence[1].startsWith(open.fence) && line.trim() === fence[1]) open = null;
      else open.to = next;
    } else if (fence) {
      open = { kind: "code", fence: fence[1], lang: fence[2], from: next, to: next };
      found.push(open);
    } else if (!line.trim()) {
      open = null;
    } else if (heading) {
      found.push({ kind: "heading", level: heading[1].length, from: at + heading[0].length, to: end });
      open = null;
    } else if (item) {
      const start = { depth: item[1].length >> 1, number: item[2], from: at + item[0].length, to: end };
      if (open && open.kind === "list") {
        open.items.push(start);
        open.to = end;
      } else {
        open = { kind: "list", from: at, to: end, items: [start] };
        found.push(open);
      }
    } else if (open && open.kind === "list" && /^\s/.test(line)) {
      open.items[open.items.length - 1].to = open.to = end;
    } else {
      const kind = /^>/.test(line) ? "quote" : "paragraph";
      if (!open || open.kind !== kind) {
        open = { kind, from: at, to: end };
        found.push(open);
      }
      open.to = end;
    }
    at = next;
  }
  return found;
}

function list(source, items, marks) {
  const root = document.createDocumentFragment(), levels = [];
  for (const item of items) {
    const depth = Math.min(item.depth, levels.length);
    levels.length = Math.min(levels.length, depth + 1);
    const tag = item.number === undefined ? "UL" : "OL";
    if (levels[depth] && levels[depth].tagName !== tag) levels.length = depth;
    if (!levels[depth]) {
      levels[depth] = el(tag);
      const above = depth ? levels[depth - 1].lastChild : root;
      above.append(levels[depth]);
    }
    const node = el("li");
    if (item.number !== undefined) node.value = Number(item.number);
    inline(node, source, item.from, item.to, marks);
    levels[depth].append(node);
  }
  return root;
}

function block(source, found, marks) {
  if (found.kind === "code") {
    const code = el("code");
    put(code, source, found.from, found.to, marks);
    const copy = el("button", { type: "button", className: "copy-code" }, "Copy code");
    return el("div", { className: "code" }, el("p", {}, el("span", {}, found.lang || "code"), copy), el("pre", { tabIndex: 0 }, code));
  }
  if (found.kind === "list") return el("div", {}, list(source, found.items, marks));
  const tag = { heading: `h${Math.min(5, found.level + 2)}`, quote: "blockquote", paragraph: "p" }[found.kind];
  const node = el(tag);
  if (found.kind !== "quote") {
    inline(node, source, found.from, found.to, marks);
    return node;
  }
  for (let at = found.from; at < found.to;) {
    let end = source.indexOf("\n", at);
    end = end < 0 || end >= found.to ? found.to : end + 1;
    inline(node, source, at + /^> ?|^/.exec(source.slice(at, end))[0].length, end, marks);
    at = end;
  }
  return node;
}

const drawn = new WeakMap();

/** Draw a text that may have grown since: blocks that are as they were stay, so that a selection in them stays too. */
function draw(root, source, marks) {
  const before = drawn.get(root) || [];
  const now = blocks(source).map((found, i, all) => {
    const key = `${found.kind}:${found.from}:${found.to}`;
    const kept = before[i];
    if (kept && kept.key === key && i < all.length - 1) return kept;
    const node = block(source, found, marks);
    if (kept) kept.node.replaceWith(node);
    else root.append(node);
    return { key, node };
  });
  for (const { node } of before.slice(now.length)) node.remove();
  drawn.set(root, now);
}

