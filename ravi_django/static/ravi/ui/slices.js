// How much of a text of a model is parsed at once. A parser of markdown takes more than linear time for some texts, so that
// a slice's cost is bounded before the parse: by counts, which take linear time and are the same on each machine.

export const TOKENS = 4000; // of a slice: the characters that may begin one, and the cells of its tables
export const LONGEST = 20_000; // characters of a slice that is not code
const CODE = 60_000; // characters of a slice that is
const INDENTED = 100; // characters before the text of a line
const NESTED = 20; // quotes and lists that a line opens
const SPECIAL = /[*_~`[\]<>\\!:@.)#=+\-\n]/g;
const INDENT = /^(?:[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t])))*[ \t]*/gm;
const HEAD = /^[-|: \t>*+\d.)]+$/gm; // the line below the head of a table: each row gets as many cells
const BLOCK = /\n[ \t]*\n(?=\S)|\n(?=```|~~~)/g;
const FENCE = /(`{3,}(?=[^`\n]*(?:\n|$))|~{3,})([^\n]*)(?:\n|$)(?:|([\s\S]*?)(?:\n|$))(?: {0,3}\1[~`]* *(?=\n|$)|$)\n*/y; // as marked has it

// The slice at `from`: whole blocks. `plain`: one block that costs too much. Long code is a slice of its own.
export function sliceAt(text, from) {
  let [end, tokens] = [from, 0];
  while (end < text.length) {
    const block = blockAt(text, end);
    if (end > from && (tokens + block.tokens > TOKENS || block.end - from > LONGEST)) break;
    [end, tokens] = [block.end, tokens + block.tokens];
    if (tokens > TOKENS) return { end, tokens: TOKENS, plain: !block.isCode || end - from > CODE };
  }
  return { end, tokens, plain: false };
}

function blockAt(text, from) {
  FENCE.lastIndex = BLOCK.lastIndex = from;
  const isCode = FENCE.test(text);
  const end = isCode ? FENCE.lastIndex : BLOCK.test(text) ? BLOCK.lastIndex : text.length;
  return { end, isCode, tokens: end - from > LONGEST ? Infinity : tokensOf(text.slice(from, end)) };
}

function tokensOf(block) {
  const isDeep = (indent) => indent.length > INDENTED || indent.replace(/[ \t\d]+/g, "").length > NESTED;
  if (block.match(INDENT).some(isDeep)) return Infinity;
  const columns = Math.max(0, ...(block.match(HEAD) ?? []).map((head) => head.split("|").length));
  const count = (pattern) => block.match(pattern)?.length ?? 0;
  return count(SPECIAL) + Math.max(count(/\|/g), columns * count(/\n/g));
}
