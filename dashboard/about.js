// What the page says around the list: the server, the client, and what needs attention.
import { byId, element, setText, show } from "./dom.js";
import { searchOf, visible } from "./state.js";

const clock = (ms) => new Date(ms).toTimeString().slice(0, 5);

export const server = (session) => {
  show(byId("facts"), true);
  setText(byId("store"), session.backend);
  setText(byId("version"), session.version);
  const open = !session.principal && !session.policy;
  setText(byId("access"), open ? "Access" : "You");
  let who = open ? "open, no sign-in" : session.principal || "not named";
  if (session.cookie) who += session.break ? ", may break until " + clock(Date.parse(session.ends_at)) : ", reads only";
  setText(byId("who"), visible(who));
  show(byId("sign-out"), session.cookie);
};

// link says how current the page is. Only the words are announced, not the seconds.
export const link = (state, words, fresh) => {
  const p = byId("link");
  if (p.dataset.state !== state) p.dataset.state = document.body.dataset.link = state;
  setText(byId("link-text"), words);
  setText(byId("fresh"), fresh);
};

export const complain = (text) => {
  setText(byId("alert"), text);
  show(byId("alert"), text !== "");
};

const built = [];

const buildList = (list) => {
  const title = element("h3", "", list.title);
  const entries = element("ul", "");
  const none = element("p", "quiet", "none");
  const box = element("div", "", title, entries, none);
  byId("attention-lists").append(box);
  return { box, entries, none, lines: [] };
};

// attention changes the entries in place, so that the one under the pointer or the focus stays.
export const attention = (lists, view) => {
  lists.forEach((list, i) => {
    const to = (built[i] ||= buildList(list));
    list.entries.forEach((entry, k) => {
      if (!to.lines[k]) {
        const link = element("a", "theirs name"), value = element("span", "value");
        to.lines[k] = { link, value, line: element("li", "", link, value) };
        to.entries.append(to.lines[k].line);
      }
      const { link, value, line } = to.lines[k];
      setText(link, visible(entry.name));
      link.title = visible(entry.name);
      link.href = searchOf({ ...view, lock: entry.name });
      link.dataset.lock = entry.name;
      setText(value, entry.value);
      show(line, true);
    });
    for (const { line } of to.lines.slice(list.entries.length)) show(line, false);
    show(to.none, list.entries.length === 0);
    to.box.classList.toggle("without", list.entries.length === 0);
  });
};
