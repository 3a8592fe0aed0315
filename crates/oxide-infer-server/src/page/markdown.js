// A small part of Markdown as DOM nodes: headings, paragraphs, lists, quotes, code, bold, italic, links.
//
// Text only ever becomes text nodes, so whatever a model writes, none of it is HTML. What is not known stays as written.

/**
 * Shows `text` in `element`. Blocks that have not changed since the last call keep their nodes, so that an answer can be
 * shown anew with every token and what is selected in it stays selected.
 */
export function show(element, text) {
  const sources = blocks(text);
  sources.forEach((source, at) => {
    const old = element.children[at];
    if (old && shown.get(old) === source.key) return;
    const node = render(source);
    shown.set(node, source.key);
    if (old) old.replaceWith(node);
    else element.append(node);
  });
  while (element.children.length > sources.length) element.lastElementChild.remove();
}

const shown = new WeakMap();

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const BLANK = /^\s*$/;
// Beyond this, what lies in each other is shown as text.
const DEEPEST = 8;
// Looking for a mark's other end takes time with the square of a paragraph's length.
const LONGEST = 20_000;

/** Splits text into blocks: `{kind, lines, …}`, with a `key` that is equal for blocks that look the same. */
function blocks(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const block = BLANK.test(lines[at]) ? { kind: "blank", end: at + 1 } : blockAt(lines, at);
    if (block.kind !== "blank") {
      block.lines ??= lines.slice(at, block.end);
      block.key = `${block.kind}\n${block.lines.join("\n")}`;
      found.push(block);
    }
    at = block.end;
  }
  return found;
}

function blockAt(lines, at) {
  const fence = FENCE.exec(lines[at]);
  if (fence) return fencedCode(lines, at, fence);
  const heading = HEADING.exec(lines[at]);
  if (heading) return { kind: `heading ${heading[1].length}`, lines: [heading[2]], end: at + 1 };
  if (RULE.test(lines[at])) return { kind: "rule", lines: [], end: at + 1 };
  if (QUOTE.test(lines[at])) {
    const end = endOfRun(lines, at, (line) => QUOTE.test(line));
    return { kind: "quote", lines: lines.slice(at, end).map((line) => QUOTE.exec(line)[1]), end };
  }
  if (ITEM.test(lines[at])) return { kind: "list", end: endOfList(lines, at) };
  return { kind: "paragraph", end: endOfRun(lines, at, (line) => !beginsBlock(line)) };
}

/** An open fence reaches to the end, which is how code looks while it still arrives. */
function fencedCode(lines, at, [, marks]) {
  const closes = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closes.test(lines[end])) end += 1;
  return { kind: "code", lines: lines.slice(at + 1, end), end: end + 1 };
}

function endOfRun(lines, at, belongs) {
  let end = at + 1;
  while (end < lines.length && !BLANK.test(lines[end]) && belongs(lines[end])) end += 1;
  return end;
}

function beginsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

/** A list goes on with its items, with what is indented below them, and with the lines right after an item's. */
function endOfList(lines, at) {
  const first = ITEM.exec(lines[at]);
  let end = at + 1;
  let afterBlank = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (BLANK.test(line)) {
      afterBlank = true;
      continue;
    }
    const item = ITEM.exec(line);
    const deeper = indentOf(line) > first[1].length;
    if (!deeper && (item ? isNumbered(item) !== isNumbered(first) : afterBlank || beginsBlock(line))) break;
    if (!deeper && RULE.test(line)) break;
    afterBlank = false;
  }
  while (BLANK.test(lines[end - 1])) end -= 1;
  return end;
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function isNumbered(item) {
  return /\d/.test(item[2]);
}

function render(block, depth = 0) {
  const [kind, level] = block.kind.split(" ");
  switch (kind) {
    case "code":
      return element("pre", [element("code", [block.lines.join("\n")])]);
    case "heading":
      // The page itself has the first two levels.
      return element(`h${Math.min(6, Number(level) + 2)}`, inline(block.lines[0]));
    case "rule":
      return element("hr", []);
    case "quote":
      return element("blockquote", nested(block.lines, depth));
    case "list":
      return list(block.lines, depth);
    default:
      return element("p", inline(block.lines.map((line) => line.trim()).join("\n")));
  }
}

function nested(lines, depth) {
  if (depth >= DEEPEST) return [lines.join("\n")];
  return blocks(lines.join("\n")).map((block) => render(block, depth + 1));
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= first[1].length) {
      items.push({ indent: item[1].length + item[2].length + Math.min(4, item[3].length), lines: [item[4]] });
    } else {
      const { indent, lines: own } = items.at(-1);
      own.push(line.slice(Math.min(indent, indentOf(line))));
    }
  }
  const made = element(isNumbered(first) ? "ol" : "ul", items.map((item) => listItem(item.lines, depth)));
  const start = Number.parseInt(first[2], 10);
  if (start > 1) made.setAttribute("start", start);
  return made;
}

/** An item of one paragraph, perhaps with a list below it, has no paragraph's margins. */
function listItem(lines, depth) {
  const content = nested(lines, depth);
  if (content[0]?.nodeName === "P") content.splice(0, 1, ...content[0].childNodes);
  return element("li", content);
}

function element(name, children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

// In the order of the alternatives: an escaped mark, code, a link, bold, italic.
const INLINE =
  /\\([\\`*_[\]()#+\-.!>~])|(`+)([\s\S]*?[^`])\2(?!`)|\[([^[\]]+)\]\(([^()\s]+)\)|(\*\*|__)(?=\S)([\s\S]*?\S)\6|([*_])(?=[^\s*_])([\s\S]*?[^\s*_])\8(?![\w*])/;

/** The nodes of a line of text. */
function inline(text, depth = 0) {
  if (text.length > LONGEST) return [text];
  const nodes = [];
  const marks = new RegExp(INLINE, "g");
  let done = 0;
  for (let found = marks.exec(text); found !== null; found = marks.exec(text)) {
    // A mark in the middle of a word is a part of it: snake_case_name.
    const inWord = /\w/.test(text[found.index - 1] ?? "") && text[found.index] === "_";
    const node = inWord ? null : inlineNode(found, depth);
    if (node === null) {
      marks.lastIndex = found.index + 1;
      continue;
    }
    nodes.push(text.slice(done, found.index), node);
    done = marks.lastIndex;
  }
  nodes.push(text.slice(done));
  return nodes.filter((node) => node !== "");
}

function inlineNode(found, depth) {
  const [, escaped, , code, label, address, , bold, , italic] = found;
  if (escaped !== undefined) return escaped;
  if (code !== undefined) return element("code", [code.replace(/^ (.*\S.*) $/s, "$1")]);
  if (depth >= DEEPEST) return null;
  if (label !== undefined) return link(label, address, depth);
  if (bold !== undefined) return element("strong", inline(bold, depth + 1));
  return element("em", inline(italic, depth + 1));
}

/** A link that leads to the web and nowhere else; anything else stays text. */
function link(label, address, depth) {
  if (!/^https?:\/\//i.test(address) || !URL.canParse(address)) return null;
  const made = element("a", inline(label, depth + 1));
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
}
