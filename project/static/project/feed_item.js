// An item as the feed page shows it. All of it comes from outside: texts are texts, and an address is looked at.

import { element } from "../ravi/ui/element.js";
import { visible } from "../ravi/ui/visible.js";

const DAY = { dateStyle: "medium", timeStyle: "short" };

export function itemRow(item) {
  const row = element("li");
  row.append(item.kept ? keptItem(item) : skippedItem(item));
  return row;
}

function keptItem(item) {
  const made = element("article", "item");
  const about = element("div", "about");
  about.append(element("span", "topic", sourceOf(item.topic)), when(item.at));
  if (item.score !== null) about.append(element("span", "score", scoreOf(item)));
  const address = webAddress(item.url);
  const title = element("h3", "", address ? undefined : visible(item.title));
  if (address) title.append(link(address, visible(item.title)));
  made.append(about, title);
  if (item.summary) made.append(element("p", "words", visible(item.summary)));
  if (item.reason) made.append(element("p", "reason", visible(item.reason)));
  return made;
}

function skippedItem(item) {
  const made = element("details", "skipped");
  const line = element("summary", "", `Passed over: ${visible(item.title)}`);
  line.append(when(item.at));
  made.append(line);
  if (item.summary) made.append(element("p", "words", visible(item.summary)));
  const address = webAddress(item.url);
  if (address) made.append(link(address, `Read it at ${address.host}`)); // none inside the line that opens this
  const score = item.score === null ? "" : ` (${scoreOf(item)})`;
  made.append(element("p", "reason", `${sourceOf(item.topic)}${item.reason ? `: ${visible(item.reason)}` : ""}${score}`));
  return made;
}

// Null unless it is one of a web page: what else there is may be a script.
function webAddress(url) {
  try {
    const found = new URL(url);
    return ["http:", "https:"].includes(found.protocol) ? found : null;
  } catch {
    return null;
  }
}

function link(address, words) {
  const made = element("a", "", words);
  made.href = address.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
}

function when(at) {
  const moment = new Date(at);
  const today = moment.toDateString() === new Date().toDateString();
  const made = element("time", "", today ? moment.toLocaleTimeString([], { timeStyle: "medium" }) : moment.toLocaleString([], DAY));
  made.dateTime = at;
  return made;
}

function scoreOf(item) {
  return `score ${Number(item.score.toFixed(2))}`;
}

export function sourceOf(topic) {
  return visible(topic.split("/").at(-1));
}
