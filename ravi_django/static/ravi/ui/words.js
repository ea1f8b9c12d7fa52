// The page's texts in the reader's language, by the English text. The server sends them in a data block.

let words = {};

export function setWords(given) {
  words = given;
}

// `%s` are filled in with the values, in their order.
export function t(text, ...values) {
  return (words[text] ?? text).replace(/%s/g, () => String(values.shift()));
}
